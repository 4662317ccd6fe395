"""The embedded model pair: its corpus, its trainer, its evaluation, and the trained checkpoints in `models/`."""

from pathlib import Path

MODELS = Path(__file__).parent / "models"
TARGET, DRAFT = MODELS / "target", MODELS / "draft"
