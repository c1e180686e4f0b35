from __future__ import annotations

import json
import subprocess
import sys

import pytest

from minserve.errors import ModelNotFound, UnsupportedModel
from minserve.models.config import FAMILIES, ModelConfig

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
        ({"rope_scaling": {"type": "dynamic", "factor": 4}}, "rope_type 'dynamic'"),
        ({"rope_scaling": {"type": "longrope", "factor": 4}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "lacks 'factor'"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "factor is '4'"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias"),
        ({"architectures": ["Qwen2ForCausalLM"], "mlp_bias": True}, "mlp_bias"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window is 0"),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "layer_types": ["chunked_attention"] * 30,
            },
            "layer_types",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"num_key_value_heads": 2}, "2 KV heads"),
        ({"vocab_size": "many"}, "wrong type"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"head_dim": 63}, "head_dim 63"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused_by_name(change, named):
    with pytest.raises(UnsupportedModel, match=named) as error:
        ModelConfig.from_dict(LLAMA | change)
    assert error.value.hint


def test_missing_field_is_named():
    with pytest.raises(UnsupportedModel, match="vocab_size"):
        ModelConfig.from_dict({k: v for k, v in LLAMA.items() if k != "vocab_size"})


def test_a_family_fills_in_what_its_config_leaves_out():
    def of(architecture, **changes):
        return ModelConfig.from_dict(LLAMA | {"architectures": [architecture]} | changes)

    mistral = of("MistralForCausalLM")
    assert set(mistral.windows) == {4096} and not mistral.qkv_bias
    assert set(of("MistralForCausalLM", sliding_window=None).windows) == {None}
    qwen2 = of("Qwen2ForCausalLM", sliding_window=64)
    assert qwen2.qkv_bias and not qwen2.out_bias and set(qwen2.windows) == {None}
    assert of("Qwen2ForCausalLM", use_sliding_window=True).windows == (None,) * 28 + (4096,) * 2
    qwen3 = of("Qwen3ForCausalLM")
    assert qwen3.qk_norm and qwen3.head_dim == 128 and not qwen3.qkv_bias
    assert [of(a).family for a in FAMILIES] == ["Llama", "Mistral", "Qwen2", "Qwen3"]


def test_yarn_stretches_the_context_that_the_config_names():
    rope = {"rope_type": "yarn", "factor": 4.0}
    assert ModelConfig.from_dict(LLAMA | {"rope_scaling": rope}).max_position_embeddings == 32768
    done = rope | {"original_max_position_embeddings": 2048}
    assert ModelConfig.from_dict(LLAMA | {"rope_scaling": done}).max_position_embeddings == 8192


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
