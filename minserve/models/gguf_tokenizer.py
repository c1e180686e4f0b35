"""The tokenizer inside a GGUF file, written as `tokenizer.json` and `tokenizer_config.json`.

A GGUF file names how text is cut before byte-pair encoding (`tokenizer.ggml.pre`) and leaves the
cutting to the program that reads it, so each name's rule is written here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from minserve.errors import UnsupportedModel

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = _WORDS.format(digits="{1,3}")
QWEN2 = _WORDS.format(digits="")
GPT2 = ("gpt-2", "default")
KNOWN = (*GPT2, "smollm", "llama-bpe", "qwen2")
CONTROL, USER_DEFINED = 3, 4  # llama.cpp's token types
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>")


def write_tokenizer(fields: dict[str, Any], file: Path, folder: Path) -> None:
    """Write the tokenizer that `fields` describe to `folder`.

    A `tokenizer.json` that lies beside the file is taken instead. Raises `UnsupportedModel` for a
    way of cutting text that minserve does not know.
    """
    beside = file.parent / "tokenizer.json"
    if beside.is_file():
        shutil.copyfile(beside, folder / beside.name)
    elif fields.get("tokenizer.ggml.model") == "gpt2":
        _byte_pairs(fields, file).save(str(folder / "tokenizer.json"))
    elif fields.get("tokenizer.ggml.model") == "llama":
        _sentence_piece(file, folder)
    else:
        raise UnsupportedModel(
            f"{file} has a tokenizer of type {fields.get('tokenizer.ggml.model')!r}",
            "put the model's tokenizer.json beside the file",
        )
    tokens = fields.get("tokenizer.ggml.tokens", [])
    settings = {}
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for ours, theirs in names.items():
        i = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if i is not None and i < len(tokens):
            settings[f"{ours}_token"] = tokens[i]
    if template := fields.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def end_token_ids(fields: dict[str, Any]) -> list[int]:
    """What ends a generation: the end token, the end of a turn, and tokens named like one."""
    kinds = ("eos", "eot", "eom")
    found = (fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in kinds)
    ids = {id for id in found if id is not None}
    types = fields.get("tokenizer.ggml.token_type", [])
    for i, token in enumerate(fields.get("tokenizer.ggml.tokens", [])):
        if token in _END_OF_TURN and i < len(types) and types[i] == CONTROL:
            ids.add(i)
    return sorted(ids)


def _byte_pairs(fields: dict[str, Any], file: Path):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
    from tokenizers import pre_tokenizers as pre

    cut = fields.get("tokenizer.ggml.pre", "default")
    if cut not in KNOWN:
        raise UnsupportedModel(
            f"{file} cuts text by the rule {cut!r}; minserve knows {', '.join(KNOWN)}",
            "put the model's tokenizer.json beside the file",
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=cut == "llama-bpe"))
    if cut in GPT2:
        tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    elif cut == "smollm":
        tokenizer.pre_tokenizer = pre.Sequence(
            [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
        )
    else:
        rule = Regex(LLAMA3 if cut == "llama-bpe" else QWEN2)
        tokenizer.pre_tokenizer = pre.Sequence(
            [
                pre.Split(rule, behavior="isolated"),
                pre.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if cut == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    ways = {CONTROL: tokenizer.add_special_tokens, USER_DEFINED: tokenizer.add_tokens}
    for kind, add in ways.items():
        names = [token for token, its in zip(tokens, types, strict=True) if its == kind]
        add([AddedToken(name, normalized=False) for name in names])
    bos = fields.get("tokenizer.ggml.bos_token_id")
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", cut == "llama-bpe"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


def _sentence_piece(file: Path, folder: Path) -> None:
    """Llama 2's kind: scores instead of merges; transformers turns one into the other."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
