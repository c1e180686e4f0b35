"""GGUF files, written here with llama.cpp's own writer, against the checkpoints they came from."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_llama import TEXT, generate, write_checkpoint
from tokenizers.pre_tokenizers import ByteLevel

from minserve.errors import ConfigError, ModelNotFound, UnsupportedModel
from minserve.execution.torch_executor import TorchExecutor
from minserve.models.config import ModelConfig
from minserve.models.gguf import MANIFEST, TENSORS, folder_of
from minserve.models.registry import config_of, resolve
from minserve.models.tokenizer import Tokenizer

KINDS = {"Llama": "llama", "Mistral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3"}
GGUF_NAMES = {ours: theirs for theirs, ours in TENSORS.items()}
PROMPT = [(7 * i + 3) % 290 for i in range(40)]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("MINSERVE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models" / "gguf"


def write_gguf(source: Path, file: Path, packing=None, extra=(), pre="smollm") -> Path:
    """The checkpoint in `source` as llama.cpp's converter would write it."""
    config = json.loads((source / "config.json").read_text())
    kind = KINDS[config["architectures"][0].removesuffix("ForCausalLM")]
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads := config["num_attention_heads"])
    writer.add_head_count_kv(kv_heads := config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    for method, *values in extra:
        getattr(writer, method)(*values)

    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    types = [gguf.TokenType.NORMAL] * len(vocab)
    for i in range(len(vocab), config["vocab_size"]):
        vocab.append(f"[PAD{i}]")
        types.append(gguf.TokenType.UNUSED)
    types[vocab.index("<|end|>")] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(vocab.index("<|end|>"))
    writer.add_chat_template("{{ messages[0].content }}{{ eos_token }}")

    for name, tensor in load_file(source / "model.safetensors").items():
        values = tensor.numpy()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            # As LlamaModel.permute in llama.cpp's convert_hf_to_gguf.py.
            n = heads if "q_proj" in name else kv_heads
            values = values.reshape(n, 2, len(values) // n // 2, *values.shape[1:])
            values = np.ascontiguousarray(values.swapaxes(1, 2).reshape(tensor.shape))
        part, _, suffix = name.rpartition(".")
        layer, found = "", part
        if part.startswith("model.layers."):
            _, _, number, found = part.split(".", 3)
            layer = f"blk.{number}."
        packed = {}
        if packing and values.ndim == 2:
            values = gguf.quants.quantize(values, packing)
            packed["raw_dtype"] = packing
        writer.add_tensor(f"{layer}{GGUF_NAMES[found]}.{suffix}", values, **packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    "overrides",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        {"tie_word_embeddings": True, "head_dim": 24},
        {"attention_bias": True},
        {"family": "Mistral", "sliding_window": 20},
        {"family": "Qwen2"},
        {"family": "Qwen3", "head_dim": 32, "tie_word_embeddings": True},
    ],
    ids=str,
)
def test_a_gguf_file_is_the_model_it_was_made_from(tmp_path, overrides):
    source = write_checkpoint(tmp_path / "source", **overrides)
    folder = resolve(write_gguf(source, tmp_path / "m.gguf"))
    ours, theirs = ModelConfig.from_folder(folder), ModelConfig.from_folder(source)
    for field in ("architecture", "head_dim", "windows", "qkv_bias", "out_bias", "rope_theta"):
        assert getattr(ours, field) == getattr(theirs, field)
    weights = load_file(folder / "model-00001.safetensors")
    original = load_file(source / "model.safetensors")
    assert weights.keys() == original.keys()
    assert all(torch.equal(weights[name], original[name]) for name in original)
    tokens = [
        generate(TorchExecutor(f, num_blocks=8), PROMPT, range(8), 10) for f in (folder, source)
    ]
    assert tokens[0] == tokens[1]


def test_its_shape_is_told_without_unpacking_it(tmp_path, home):
    source = write_checkpoint(tmp_path / "source", family="Qwen2")
    config = config_of(write_gguf(source, tmp_path / "m.gguf"))
    assert config.family == "Qwen2" and config.num_hidden_layers == 3
    assert not home.exists()


def test_packed_weights_are_unpacked_as_transformers_unpacks_them(tmp_path):
    from transformers import AutoModelForCausalLM, GgufConfig

    source = write_checkpoint(tmp_path / "source", intermediate_size=128)
    file = write_gguf(source, tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q8_0)
    folder = folder_of(file)
    assert ModelConfig.from_folder(folder).dtype == "float16"
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        gguf_file=file.name,
        dtype=torch.float16,
        quantization_config=GgufConfig(dequantize=True),
    ).state_dict()
    ours = load_file(folder / "model-00001.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_tokenizer_comes_along_and_splits_digits(tmp_path):
    source = write_checkpoint(tmp_path / "source")
    tokenizer = Tokenizer(resolve(write_gguf(source, tmp_path / "m.gguf")))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.encode("1234") == [i for digit in "1234" for i in tokenizer.encode(digit)]
    end = tokenizer.encode("<|end|>")
    assert set(end) == tokenizer.eos_token_ids and len(end) == 1
    assert tokenizer.encode_chat([{"content": "a<|end|>"}])[-1:] == end
    assert tokenizer.encode_chat([{"content": "a<|end|>"}]).count(*end) == 1
    # A tokenizer.json beside the file is taken instead.
    (tmp_path / "own").mkdir()
    shutil.copy(source / "tokenizer.json", tmp_path / "own")
    own = Tokenizer(resolve(write_gguf(source, tmp_path / "own" / "m.gguf", pre="tekken")))
    assert own.encode(TEXT) == Tokenizer(source).encode(TEXT)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "It's 12345, ok?\n\n x", "It|'s| |123|45|,| ok|?\n\n| x"),
        ("qwen2", "It's 123, ok", "It|'s| |1|2|3|,| ok"),
        ("smollm", "It's 12 ok", "It|'s| |1|2| ok"),
        ("gpt-2", "It's 12 ok", "It|'s| 12| ok"),
    ],
)
def test_text_is_cut_by_the_rule_that_the_file_names(pre, text, pieces):
    from minserve.models.gguf_tokenizer import _byte_pairs

    alphabet = sorted(ByteLevel.alphabet())
    fields = {"tokens": alphabet, "token_type": [1] * len(alphabet), "merges": [], "pre": pre}
    fields = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    tokenizer = _byte_pairs(fields, Path("m.gguf"))
    cut = [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == pieces.split("|")
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_scores_instead_of_merges_are_read_too(tmp_path):
    source = write_checkpoint(tmp_path / "source")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    file = tmp_path / "m.gguf"
    write_gguf(source, file)  # its tokenizer is left out below
    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    del reader
    writer = gguf.GGUFWriter(tmp_path / "spm.gguf", "llama")
    for name, value in fields.items():
        if name.startswith("llama."):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces + words)
    writer.add_token_scores([0.0] * len(pieces) + [-float(len(words) - i) for i in range(10)])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for tensor in gguf.GGUFReader(file).tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = Tokenizer(resolve(tmp_path / "spm.gguf"))
    ids = tokenizer.encode("hello hello é")
    assert tokenizer.decode(ids) == "hello hello é"
    hello = len(pieces) + len(words) - 1
    assert ids.count(hello) == 2 and tokenizer.eos_token_ids == {2}


def llama3_divisors(factor=8.0):
    frequencies = 10000.0 ** -(np.arange(8) / 8)
    turns = 8192 * frequencies / (2 * np.pi)
    keep = np.clip((turns - 1) / 3, 0, 1)
    return (1 / (keep + (1 - keep) / factor)).astype(np.float32)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([("add_tensor", "rope_freqs.weight", llama3_divisors())], "Llama3Scaling(factor=8.0"),
        (
            [
                ("add_rope_scaling_type", gguf.RopeScalingType.LINEAR),
                ("add_rope_scaling_factor", 4.0),
            ],
            "LinearScaling(factor=4.0",
        ),
        (
            [
                ("add_rope_scaling_type", gguf.RopeScalingType.YARN),
                ("add_rope_scaling_factor", 4.0),
                ("add_rope_scaling_orig_ctx_len", 128),
            ],
            "YarnScaling(factor=4.0, original_max_position_embeddings=128",
        ),
    ],
)
def test_rotary_scaling_is_read(tmp_path, extra, expected):
    file = write_gguf(write_checkpoint(tmp_path / "source"), tmp_path / "m.gguf", extra=extra)
    assert str(ModelConfig.from_folder(resolve(file)).rope_scaling).startswith(expected)


@pytest.mark.parametrize(
    ("extra", "pre", "named"),
    [
        ([("add_expert_count", 4)], "smollm", "mixture of experts"),
        ([("add_uint16", "split.count", 3)], "smollm", "one of 3 parts"),
        ([("add_rope_scaling_type", gguf.RopeScalingType.LONGROPE)], "smollm", "longrope"),
        ([("add_tensor", "rope_freqs.weight", np.full(8, 3.0, "f4"))], "smollm", "rope_freqs"),
        ([("add_rope_dimension_count", 8)], "smollm", "partly rotated"),
        ([("add_tensor", "blk.0.ffn_gate_inp.weight", np.ones(4, "f4"))], "smollm", "gate_inp"),
        ([], "tekken", "'tekken'"),
    ],
)
def test_what_minserve_does_not_read_is_refused_by_name(tmp_path, home, extra, pre, named):
    source = write_checkpoint(tmp_path / "source")
    file = write_gguf(source, tmp_path / "m.gguf", extra=extra, pre=pre)
    with pytest.raises(UnsupportedModel, match=named) as error:
        resolve(file)
    assert error.value.hint
    assert not list(home.iterdir())


def test_a_damaged_file_leaves_nothing_behind(tmp_path, home):
    file = tmp_path / "m.gguf"
    for content, why in (
        (b"", "is empty"),
        (b"not a gguf", "does not begin as one"),
        (write_whole(tmp_path).read_bytes()[:20_000], "ends too early"),
    ):
        file.write_bytes(content)
        with pytest.raises(ModelNotFound, match=f"not a whole GGUF file: it {why}") as error:
            resolve(file)
        assert error.value.hint and not list(home.iterdir())


def write_whole(tmp_path) -> Path:
    return write_gguf(write_checkpoint(tmp_path / "source"), tmp_path / "whole.gguf")


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, home, monkeypatch):
    file = write_whole(tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match="free in"):
        resolve(file)
    assert not list(home.iterdir())


def test_conversion_happens_once_and_again_where_a_file_was_cut_short(tmp_path, monkeypatch):
    from minserve.models import gguf as ours

    file, conversions = write_whole(tmp_path), []
    convert = ours.convert
    monkeypatch.setattr(ours, "convert", lambda *a: conversions.append(a) or convert(*a))
    folder = resolve(file)
    assert resolve(file) == folder and len(conversions) == 1
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    weights = folder / "model-00001.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert resolve(file) == folder and len(conversions) == 2
    file.write_bytes(file.read_bytes() + b"\0")
    assert resolve(file) != folder
