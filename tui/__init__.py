"""The playground: a Textual app that shows every decision of the engine while it takes it."""
