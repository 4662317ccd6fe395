"""The tokenizer of a checkpoint: text and conversations to ids, ids to text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from mini_infer.errors import UserError
from mini_infer.files import corrupt
from mini_infer.text.chat_template import ChatTemplate
from mini_infer.text.control_tokens import ControlTokens, strings_in, unused_character
from mini_infer.text.detokenizer import Detokenizer
from mini_infer.text.encoder import Encoder
from mini_infer.text.files import TokenizerFiles, read_folder
from mini_infer.text.messages import LONGEST_CHAT, plain_json, plain_messages
from mini_infer.text.token_bytes import TokenBytes


class Tokenizer:
    """Text to ids and back. Nothing but caches changes after loading, so several threads may use one.

    Control tokens are the special tokens of the checkpoint, and added tokens that act like them without the flag: those
    spelled `<|…|>`, and those a chat template writes, but for markup such as `<think>` that belongs to the text.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._backend = _load(files)
        self.name = files.folder.name or str(files.folder)
        self._templates = files.templates
        self._compiled: dict[str, ChatTemplate] = {}
        self._named = files.named
        known = {name: text for name, text in files.named.items() if self.id_of(text) is not None}
        self.bos_token, self.eos_token = known.get("bos_token"), known.get("eos_token")
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        """Number of tokens, added ones included. The model's own vocabulary may be padded beyond it."""
        self.base_size: int = self._backend.get_vocab_size(with_added_tokens=False)
        """Number of tokens that text is made of, without added ones: no model has a smaller vocabulary."""

        added = {token.content: token.special for token in self._backend.get_added_tokens_decoder().values()}
        named = {*known.values(), *files.extra}
        special = [
            text for text, flag in added.items() if flag or text in named or _acts_as_control(text, self._templates)
        ]
        ends = [text for text in (self.bos_token, self.eos_token) if text is not None]
        control = {text: id for text in [*special, *ends] if (id := self.id_of(text)) is not None}
        self.special_ids = frozenset(control.values())
        """Ids of the control tokens: text does not show them, and user text does not make them."""
        self._control = ControlTokens(control)
        self._added = {id: text for text in [*added, *control] if (id := self.id_of(text)) is not None}
        self._encoder = Encoder(self._backend, control, self._unknown_id(files.tokenizer["model"]))
        self._prefix, self._suffix = self._encoder.prefix, self._encoder.suffix
        if files.add_bos and self.bos_token is not None and files.tokenizer.get("post_processor") is None:
            self._prefix = [control[self.bos_token]]

        try:
            decoder = TokenBytes(files.tokenizer.get("decoder"))
        except (AttributeError, KeyError, TypeError) as error:
            raise corrupt(files.folder / "tokenizer.json", f"decoder: {error!r}") from error
        self.one_mark_per_byte = decoder.one_mark_per_byte
        """How a broken character is shown: U+FFFD for each of its bytes, or one for the whole."""
        self._decoder = functools.cache(decoder)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint folder. Raises UserError naming the file at fault and the remedy."""
        return cls(read_folder(folder))

    def encode(self, text: str, *, allow_special: bool, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text as it stands.

        `allow_special`: control tokens spelled out in the text become control tokens (raw prompts); otherwise they are
        plain text. `add_special_tokens`: with what the tokenizer puts around a text, such as a begin token; one that
        the text already starts with is not doubled. Raises UserError for half characters (lone surrogates).
        """
        ids = self._encoder.encode(text, allow_special)
        if not add_special_tokens:
            return ids
        has_prefix = ids[: len(self._prefix)] == self._prefix
        return [*([] if has_prefix else self._prefix), *ids, *self._suffix]

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The ids of a conversation, written by the checkpoint's chat template; `variables` are further names for it.

        Only the template writes control tokens; what messages, tools and variables spell out stays text (see
        `control_tokens`). Content given as text parts is joined with nothing between. Raises UserError where there is
        no template, where it refuses or fails, and for messages of the wrong shape.
        """
        template = self.chat_template(with_tools=bool(tools))
        given = {
            "messages": plain_messages(messages),
            "tools": plain_json(list(tools), "tools") if tools else None,
            "variables": plain_json(variables, "the template's variables"),
        }
        if sum(map(len, strings_in(given))) > LONGEST_CHAT:
            raise UserError(
                f"the messages have over {LONGEST_CHAT:,} characters, more than a context holds: shorten them"
            )
        mark = unused_character([*strings_in(given), *self._templates.values()])
        light, hard = self._control.light(given, mark), self._control.hard(given, mark)
        text = template.render(**light, add_generation_prompt=add_generation_prompt)
        if hard != light:
            guarded = template.render(**hard, add_generation_prompt=add_generation_prompt)
            if self._control.find(guarded, mark) != self._control.find(text, mark):
                text = guarded  # the template made a control token from parts of user text
        return self._encoder.encode(text, True, mark)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._templates)

    def chat_template(self, with_tools: bool = False) -> ChatTemplate:
        """The template for conversations with or without tools. Raises UserError if there is none, or a broken one."""
        if not self._templates:
            raise UserError(
                f"{self.name} has no chat template; add a chat_template.jinja to its folder, or send the prompt raw "
                "(generate --raw, or the completions route)"
            )
        names = [*(["tool_use"] if with_tools else []), "default"]
        only = next(iter(self._templates)) if len(self._templates) == 1 else ""
        name = next((name for name in [*names, only] if name in self._templates), None)
        if name is None:
            raise UserError(
                f"{self.name} has chat templates named {', '.join(self._templates)}, but none named default; "
                "put the one to use into chat_template.jinja"
            )
        if name not in self._compiled:
            self._compiled[name] = ChatTemplate(self._templates[name], self._named)
        return self._compiled[name]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 show as U+FFFD. Ids beyond the vocabulary have no text."""
        stream = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return "".join([*map(stream.push, ids), stream.flush()])

    def token_bytes(self, id: int, first: bool = False) -> bytes | None:
        """The bytes one token adds to a text (a control token: its name); `first`: where it is the first of the text.
        None for an id that is no token."""
        if id in self._added:
            return self._added[id].encode()
        token = None if id < 0 or id in self._encoder.sentinel_ids else self._backend.id_to_token(id)
        return None if token is None else self._decoder(token, first)

    def piece(self, id: int) -> str:
        """One token for the eye: its text, with bytes that are no whole character as `\\xe3`."""
        data = self.token_bytes(id)
        return f"[{id}]" if data is None else data.decode(errors="backslashreplace")

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        id: int | None = self._backend.token_to_id(token)
        return id

    def vocabulary(self) -> dict[str, int]:
        """Every token as the vocabulary spells it, added ones included, and its id."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return {token: id for token, id in vocabulary.items() if id not in self._encoder.sentinel_ids}

    def _unknown_id(self, model: Mapping[str, Any]) -> int | None:
        if isinstance(model.get("unk_id"), int):
            return int(model["unk_id"])
        return self.id_of(model["unk_token"]) if isinstance(model.get("unk_token"), str) else None


def _load(files: TokenizerFiles) -> Backend:
    """The library's tokenizer, with the added tokens that only tokenizer_config.json lists."""
    try:
        backend = Backend.from_str(files.text)
    except BaseException as error:  # the library raises this bare, and where it panics something that is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise corrupt(files.folder / "tokenizer.json", error) from error
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for id, token in files.added:
        if token["content"] in known:
            continue
        flags = {
            key: bool(token[key])
            for key in ("lstrip", "rstrip", "single_word", "normalized", "special")
            if key in token
        }
        backend.add_tokens([AddedToken(token["content"], **flags)])
        if backend.token_to_id(token["content"]) != id:
            raise UserError(
                f"tokenizer_config.json in {files.folder} gives {token['content']!r} the id {id}, which tokenizer.json "
                "does not allow; the files belong to different versions: fetch both again"
            )
    return backend


def _acts_as_control(content: str, templates: Mapping[str, str]) -> bool:
    if re.fullmatch(r"<[|｜].*\w.*[|｜]>", content):
        return True
    is_markup = re.fullmatch(r"</?\w+>", content)
    has_brackets = re.fullmatch(r"[^\w\s].*\w.*[^\w\s]", content)
    return bool(has_brackets and not is_markup and any(content in source for source in templates.values()))
