"""The HTTP face of the engine: the OpenAI routes, and a few of its own, on Litestar."""
