"""The load generator: measures this or any OpenAI-compatible server. Imports neither torch nor the engine."""
