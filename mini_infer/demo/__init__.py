"""The embedded model pair: its corpus, its trainer, its evaluation, and the trained checkpoints in `models/`."""
