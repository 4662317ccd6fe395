"""How fast the engine is, beside what this machine could give at most; and scripts that drive other engines."""
