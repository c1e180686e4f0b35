"""Text to token ids and back, and a conversation to the text that the model was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers

from minserve.errors import ConfigError, InvalidRequest, ModelNotFound
from minserve.models.config import ModelConfig
from minserve.output import REPLACEMENT, Detokenizer


class Tokenizer:
    """The fast tokenizer of a model folder. Needs no torch and no transformers.

    Raises `ModelNotFound` if the folder has no readable `tokenizer.json`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._tokenizer = _read(self.folder)
        self._settings = _settings(self.folder)

    @property
    def vocab_size(self) -> int:
        """Token ids in use, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a generation, from the model's config."""
        return ModelConfig.from_folder(self.folder).eos_token_ids

    def encode(
        self, text: str, add_special_tokens: bool = True, allow_special: bool = True
    ) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens` adds what the tokenizer puts around a text, such as a first token.
        `allow_special` lets special tokens that are written in the text be such, as they are
        elsewhere; set it to False for text from people that you do not trust, who could otherwise
        write a chat turn in somebody else's name. Raises `InvalidRequest` where the text is no
        Unicode.
        """
        tokenizer = self._tokenizer if allow_special else self._plain
        try:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:  # half of a surrogate pair, as Python reads bytes that are not UTF-8
            raise InvalidRequest("the text is not valid Unicode", "give UTF-8 text") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are no character become U+FFFD."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for: UTF-8, but perhaps only a part of a character."""
        text = self.decode([token_id], skip_special_tokens=False)
        if REPLACEMENT not in text:
            return text.encode()
        name = self._tokenizer.id_to_token(token_id) or ""
        if len(name) == 6 and name.startswith("<0x"):  # a byte token of sentencepiece
            return bytes.fromhex(name[3:5])
        byte_of = _byte_level_alphabet()
        return bytes(byte_of[c] for c in name) if set(name) <= set(byte_of) else text.encode()

    def detokenizer(self, stop: Sequence[str] = ()) -> Detokenizer:
        """A fresh incremental detokenizer for one request."""
        return Detokenizer(self.decode, stop)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for `messages` (`{"role": ..., "content": ...}`), by the model's own template.

        The template runs in a sandbox: it cannot reach files or change what it is given. Raises
        `ConfigError` if the model has none, `InvalidRequest` if the template refuses the messages.
        """
        import jinja2

        try:
            return self._template.render(
                messages=list(messages),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InvalidRequest(
                f"the chat template refuses these messages: {error}",
                "give each message a role that the model knows, and text as content",
            ) from None

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Token ids of `messages`, ready for the model to answer. See `apply_chat_template`.

        Special tokens come from the template alone: `<|im_start|>` in a message, or anywhere in
        `tools`, is text like any other. Which roles may be used is for the caller to decide.
        """
        said = {"messages": list(messages), "tools": tools}
        everything = set("".join(_strings(said)))
        # A character that nobody used marks where a special token was written: mark, its id, mark.
        private = chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
        mark = next((c for c in map(chr, private) if c not in everything), None)
        if mark is None:
            raise InvalidRequest("the messages use every private character of Unicode", "use fewer")

        def hide(text: str) -> str:
            return self._any_special.sub(lambda m: f"{mark}{self._special_ids[m[0]]}{mark}", text)

        text = self.apply_chat_template(**_map_strings(hide, said))
        written = [self._special_ids[special] for special in self._any_special.findall(text)]
        if mark not in text:
            ids = self.encode(text, add_special_tokens=False)
            # A normaliser may still make a special token of something that only looked like one.
            if [i for i in ids if i in self._special_ids.values()] == written:
                return ids
        names = {str(i): special for special, i in self._special_ids.items()}
        pieces = [
            re.sub(f"{mark}([0-9]+){mark}", lambda m: names[m[1]], piece)
            for piece in self._any_special.split(text)
        ]
        ids = self.encode(pieces[0], add_special_tokens=False, allow_special=False)
        for special, piece in zip(written, pieces[1:], strict=True):
            ids += [special, *self.encode(piece, add_special_tokens=False, allow_special=False)]
        return ids

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The same, but special tokens in a text are text."""
        tokenizer = _read(self.folder)
        tokenizer.encode_special_tokens = True
        return tokenizer

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: i for i, token in added.items() if token.special and token.content}

    @cached_property
    def _any_special(self) -> re.Pattern:
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        found = {name: self._settings.get(name) for name in names}
        return {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in found.items()
            if token
        }

    @cached_property
    def _template(self):
        source = _template_source(self.folder, self._settings)
        if source is None:
            raise ConfigError(
                f"the model in {self.folder} has no chat template",
                "send a plain prompt, or add a chat_template.jinja to the folder",
            )
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise jinja2.TemplateError(message)

        # The settings that Hugging Face's templates are written for.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = refuse
        try:
            return environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template in {self.folder} does not parse: {error}",
                "fetch the model again",
            ) from None


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level token stands for (GPT-2, 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


def _read(folder: Path) -> tokenizers.Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelNotFound(
            f"there is no tokenizer.json in {folder}",
            "give a folder with a fast tokenizer; transformers' save_pretrained writes one",
        )
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelNotFound(f"cannot read {file}: {error}", "fetch the model again") from None


def _strings(value: Any) -> Iterator[str]:
    """Every string in nested lists and mappings, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _strings(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _map_strings(change: Callable[[str], str], value: Any) -> Any:
    """A copy of `value` with every string in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(change, k): _map_strings(change, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(change, item) for item in value]
    return value


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ModelNotFound(f"cannot read {file}: {error}", "fetch the model again") from None


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {t["name"]: t["template"] for t in template}.get("default")
    return template


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
