"""What a model is called over HTTP."""

from __future__ import annotations

from pathlib import Path

from mini_infer.api.errors import ApiError


class ModelNames:
    """The name that is served, and all names that are answered.

    These are the served name (by default the repository, or the folder's name), the repository, its last part, and that
    in lower case, with and without `-instruct`. `any_model` answers every name.
    """

    def __init__(self, model: str, served: str | None = None, *, any_model: bool = False) -> None:
        is_repository = model.count("/") == 1 and not model.startswith(("/", ".", "~"))
        last = Path(model).name
        if last in ("", ".."):  # the folder one stands in, or the one above
            last = Path(model).resolve().name or "model"
        low = last.lower()
        self.served = served or (model if is_repository else last)
        self.root = model if is_repository else last  # where a folder lies is nobody's affair
        self._known = {self.served, model, last, low, low.removesuffix("-instruct")}
        self._any = any_model

    def check(self, asked: str | None) -> None:
        """Raises ApiError 404 for a model that is not here. None and an empty name ask for the one that is."""
        if asked and asked not in self._known and not self._any:
            shown = asked if len(asked) <= 100 else asked[:99] + "…"
            message = f"the model {shown!r} is not served here; ask for {self.served!r}"
            raise ApiError(404, "model_not_found", message, param="model")
