"""The small files of a checkpoint, read whole, and what is said of any of its files that is not whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mini_infer.errors import UserError, is_utf8

# What people have in place of the file they meant, by its first bytes.
MISTAKEN = (
    (b"version https://git-lfs", "a large-file-storage pointer: run `git lfs pull`"),
    (b"<", "a web page"),
    (b"PK\x03\x04", "a zip archive, perhaps of PyTorch"),
    (b"GGUF", "a GGUF file under another name"),
)


def corrupt(path: Path, why: object, start: bytes = b"") -> UserError:
    """The error for a file that is not whole: what it is by its `start`, else `why`."""
    said = " ".join(str(why).split())
    why = next((f"it is {what}" for sign, what in MISTAKEN if start.startswith(sign)), said[:200])
    return UserError(f"{path} is incomplete or corrupt ({why}); fetch it again")


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file or folder that the system does not let us read."""
    return UserError(f"{path} cannot be read: {error.strerror or error}")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises UserError naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing; fetch the checkpoint again, or give another") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise corrupt(path, f"not UTF-8 at byte {error.start}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError naming it."""
    return parse_json(read_text(path), path)


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """The object in the text of the file `path`. Raises UserError naming the file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise corrupt(path, error, text[:64].encode(errors="replace")) from None
    if not isinstance(value, dict):
        raise corrupt(path, f"a JSON object is expected, not {type(value).__name__}")
    if re.search(r"\\u[dD][89a-fA-F]", text) and not is_utf8(json.dumps(value, ensure_ascii=False)):
        raise corrupt(path, "half a character, a lone surrogate, in one of its texts")
    return value
