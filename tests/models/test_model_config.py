from __future__ import annotations

import json
import subprocess
import sys

import pytest

from minserve.errors import ModelNotFound, UnsupportedModel
from minserve.models.config import ModelConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def test_smollm2_has_its_published_size():
    config = ModelConfig.from_dict(LLAMA)
    assert config.head_dim == 64
    assert config.num_parameters == 134_515_008
    assert config.eos_token_ids == {2}


def test_both_spellings_of_the_rotary_settings_are_read():
    new = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 100000.0}
    assert ModelConfig.from_dict(new) == ModelConfig.from_dict(LLAMA)


def test_generation_config_names_the_end_tokens(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == {0, 2}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None}, "unnamed"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"num_key_value_heads": 2}, "2 KV heads"),
        ({"vocab_size": "many"}, "wrong type"),
        ({"hidden_size": None}, "wrong type"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused_by_name(change, named):
    with pytest.raises(UnsupportedModel, match=named) as error:
        ModelConfig.from_dict(LLAMA | change)
    assert error.value.hint


def test_missing_field_is_named():
    with pytest.raises(UnsupportedModel, match="vocab_size"):
        ModelConfig.from_dict({k: v for k, v in LLAMA.items() if k != "vocab_size"})


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_folder_without_a_readable_config_is_no_model(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelNotFound, match="config.json"):
        ModelConfig.from_folder(tmp_path)


def test_estimates_and_output_need_no_torch():
    program = (
        "import sys, minserve.models.config, minserve.models.registry, minserve.output, "
        "minserve.home, minserve.models.tokenizer\n"
        "sys.exit(int('torch' in sys.modules or 'transformers' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
