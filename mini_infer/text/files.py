"""The text files of a checkpoint folder, read and checked: tokenizer.json, its configuration, chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_infer.errors import UserError
from mini_infer.files import corrupt, parse_json, read_json, read_text

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """What a folder says about its text."""

    folder: Path
    tokenizer: dict[str, Any]
    """tokenizer.json, parsed; `text` is its source."""
    text: str
    named: Mapping[str, str]
    """Special tokens by the name that templates use for them, such as `eos_token`."""
    extra: tuple[str, ...]
    """Further special tokens, without a name."""
    added: tuple[tuple[int, dict[str, Any]], ...]
    """(id, properties) of the added tokens that tokenizer_config.json lists."""
    add_bos: bool
    templates: Mapping[str, str]
    """Chat templates by name; the usual one is `default`."""


def read_folder(folder: str | Path) -> TokenizerFiles:
    """Reads the text files of a checkpoint. Raises UserError naming the file at fault and the remedy."""
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(
            f"no tokenizer.json in {folder}; give a checkpoint folder that has one (AutoTokenizer.from_pretrained(…)"
            ".save_pretrained(…) of transformers writes it)"
        )
    text = read_text(path)
    config = _json_if_there(folder / "tokenizer_config.json")
    specials = _json_if_there(folder / "special_tokens_map.json") | config
    named = {name: content for name in NAMED if (content := _content(specials.get(name))) is not None}
    extra = [specials.get(key) or () for key in ("additional_special_tokens", "extra_special_tokens")]
    for tokens in extra:
        if isinstance(tokens, dict):  # some checkpoints give these tokens names of their own
            named |= {name: content for name, token in tokens.items() if (content := _content(token)) is not None}
    lists = [token for tokens in extra if isinstance(tokens, list) for token in tokens]
    added = config.get("added_tokens_decoder")
    return TokenizerFiles(
        folder=folder,
        tokenizer=parse_json(text, path),
        text=text,
        named=named,
        extra=tuple(content for token in lists if (content := _content(token)) is not None),
        added=_added_tokens(added, folder / "tokenizer_config.json") if added else (),
        add_bos=config.get("add_bos_token") is True,
        templates={name: source for name, source in _templates(folder, config).items() if source.strip()},
    )


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name: those in files of their own, which then count alone, else those of the configuration."""
    own_files = {path.stem: read_text(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        return own_files | {"default": read_text(folder / "chat_template.jinja")}
    given = config.get("chat_template")
    if isinstance(given, list):
        given = {item.get("name"): item.get("template") for item in given if isinstance(item, dict)}
    elif isinstance(given, str):
        given = {"default": given} if given else {}
    elif given is None:
        given = {}
    if not isinstance(given, dict) or not all(isinstance(part, str) for item in given.items() for part in item):
        raise UserError(
            f"chat_template in {folder / 'tokenizer_config.json'} must be a text, or a list of objects with name and "
            "template; mend it, or put the template into chat_template.jinja"
        )
    return given | own_files


def _added_tokens(added: Any, path: Path) -> tuple[tuple[int, dict[str, Any]], ...]:
    try:
        return tuple(sorted((int(key), {**token, "content": str(token["content"])}) for key, token in added.items()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise corrupt(path, f"added_tokens_decoder: {error!r}") from error


def _content(token: Any) -> str | None:
    """A token is written as its text, or as an object that has it as `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def _json_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
