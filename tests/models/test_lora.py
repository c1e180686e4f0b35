"""Adapters against PEFT, and against each other in one batch."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import step, write_checkpoint

from minserve.engine import Engine
from minserve.errors import ConfigError, ModelNotFound, UnsupportedModel, WeightsMissing
from minserve.execution.executor import Row
from minserve.execution.torch_executor import TorchExecutor
from minserve.models.batch import TokenBatch
from minserve.models.decoder import Decoder
from minserve.models.lora import adapters, load_adapter
from minserve.models.quantization import dequantise, quantise_weights
from minserve.request import Request, SamplingParams

# PEFT still calls transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BLOCK_SIZE, TOLERANCE = 16, 1e-3
PROMPT = [(7 * i + 3) % 290 for i in range(50)]


def write_adapter(base, folder, seed=0, **settings):
    """A PEFT adapter with random weights for the model in `base`; returns PEFT's own model."""
    import peft
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    options = {"r": 4, "lora_alpha": 12, "target_modules": ALL, "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(model, peft.LoraConfig(**(options | settings)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:  # PEFT begins with zeros, an adapter that does nothing
                weight.normal_(std=0.3)
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("base"), family="Qwen2")


@pytest.fixture(scope="module")
def two(base, tmp_path_factory):
    """Two adapters of different rank and targets."""
    home = tmp_path_factory.mktemp("adapters")
    write_adapter(base, home / "a", seed=1)
    write_adapter(base, home / "b", seed=2, r=2, target_modules=["v_proj", "up_proj"])
    return {"a": home / "a", "b": home / "b"}


@pytest.fixture
def adapter(two, tmp_path):
    """A copy of adapter a, to be damaged."""
    return shutil.copytree(two["a"], tmp_path / "adapter")


def logits(decoder, adapter, cuts=(50,)):
    """All logits of PROMPT under `adapter`, computed in chunks that end at `cuts`."""
    c = decoder.config
    kv = torch.zeros(c.num_hidden_layers, 2, 4, BLOCK_SIZE, c.num_kv_heads, c.head_dim)
    found, start = [], 0
    for end in cuts:
        tokens = tuple(PROMPT[start:end])
        row = Row("r", tokens, start, (2, 0, 3, 1), True, 0, SamplingParams(), adapter=adapter)
        batch = TokenBatch.of([row], BLOCK_SIZE, decoder.attention)
        found.append(decoder(batch, kv, torch.arange(len(tokens)))[0])
        start = end
    return torch.cat(found)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"r": 16, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        {"target_modules": ["k_proj", "down_proj"], "use_rslora": True},
        {"target_modules": ["up_proj"], "layers_to_transform": [1]},
        {"target_modules": "all-linear", "rank_pattern": {"q_proj": 1, "down_proj": 7}},
    ],
    ids=lambda s: ", ".join(f"{k}={v}" for k, v in s.items()) or "every projection",
)
def test_logits_equal_peft(base, tmp_path, settings):
    model = write_adapter(base, tmp_path, **settings)
    decoder = Decoder.load(base)
    plain = logits(decoder, "")
    load_adapter(decoder, "mine", tmp_path)
    with torch.inference_mode():
        theirs = model(torch.tensor([PROMPT])).logits[0]
    ours = logits(decoder, "mine", cuts=(17, 18, 50))
    assert (ours - theirs).abs().max() < TOLERANCE
    assert (ours - plain).abs().max() > 0.1
    assert torch.equal(logits(decoder, ""), plain)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_mixed_batch_gives_each_row_what_it_gets_alone(base, two, batch_invariant):
    executor = TorchExecutor(base, num_blocks=64, adapters=two, batch_invariant=batch_invariant)
    caught = []
    decoder = executor.decoder

    def catch(batch, kv_cache, wanted):
        caught.append(decoder(batch, kv_cache, wanted))
        return caught[-1]

    catch.attention = decoder.attention
    executor.decoder = catch

    def row(place, adapter, start, end):
        blocks = tuple(range(8 * place, 8 * place + 8))
        tokens = tuple(PROMPT[start:end])
        return Row("r", tokens, start, blocks, True, 0, SamplingParams(), adapter=adapter)

    # Chunks and single tokens of three kinds of rows, in an order that no adapter likes.
    wanted = [("a", 0, 20), ("", 0, 33), ("b", 0, 1), ("a", 0, 50), ("", 0, 7), ("b", 0, 19)]
    alone = []
    for place, what in enumerate(wanted):
        caught.clear()
        assert not step(executor, row(place, *what)).errors
        alone.append(caught[0][0][0])
    caught.clear()
    executor.kv_cache.zero_()
    together = step(executor, *(row(place, *what) for place, what in enumerate(wanted)))
    assert not together.errors
    by_adapter = sorted(range(len(wanted)), key=lambda i: wanted[i][0])
    for i, found in zip(by_adapter, torch.cat([each for each, _ in caught]), strict=True):
        if batch_invariant:
            assert torch.equal(found, alone[i])
        assert (found - alone[i]).abs().max() < 1e-4
        assert together.token_ids[i] == (alone[i].argmax().item(),)


def test_a_prefix_is_never_shared_between_adapters(base, two):
    def ask(engine, name, adapter):
        request = Request(name, PROMPT, SamplingParams(max_tokens=5), adapter=adapter)
        engine.submit(request, 0.0)
        while engine.step(0.0):
            engine.check_integrity()
        assert request.error is None
        return request.num_cached_tokens, request.output_token_ids

    executor = TorchExecutor(base, num_blocks=64, adapters=two)
    engine = Engine(executor)
    first = {name: ask(engine, f"1{name}", name) for name in ("", "a", "b")}
    again = {name: ask(engine, f"2{name}", name) for name in ("b", "", "a")}
    assert [cached for cached, _ in first.values()] == [0, 0, 0]
    assert [cached for cached, _ in again.values()] == [48, 48, 48]
    assert {n: tokens for n, (_, tokens) in first.items()} == {
        n: tokens for n, (_, tokens) in again.items()
    }
    assert len({tuple(tokens) for _, tokens in first.values()}) == 3


def test_an_unknown_adapter_fails_its_request_and_names_those_loaded(base, two):
    engine = Engine(TorchExecutor(base, num_blocks=16, adapters=two))
    wrong, right = Request("w", PROMPT, adapter="A"), Request("r", PROMPT, adapter="a")
    for request in (wrong, right):
        engine.submit(request, 0.0)
    while engine.step(0.0):
        pass
    assert wrong.error == "adapter 'A' is not loaded (loaded: a, b)"
    assert right.error is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"an_option_of_2027": {"x": 1}}, "an_option_of_2027"),
        ({"lora_alpha": "8"}, "lora_alpha"),
    ],
)
def test_what_plain_lora_does_not_do_is_refused_by_name(base, adapter, change, named):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    decoder = Decoder.load(base)
    with pytest.raises(UnsupportedModel, match=f"sets {named} to") as error:
        load_adapter(decoder, "x", adapter)
    assert error.value.hint and not adapters(decoder)


def test_a_damaged_or_foreign_adapter_is_refused_whole(base, adapter, tmp_path):
    decoder = Decoder.load(base)
    file = adapter / "adapter_model.safetensors"
    good = load_file(file)
    q = "base_model.model.model.layers.2.self_attn.q_proj.lora_{}.weight"

    def refused(tensors, error, match):
        save_file(tensors, file)
        with pytest.raises(error, match=match) as caught:
            load_adapter(decoder, "x", adapter)
        assert caught.value.hint and not adapters(decoder)

    refused(good | {q.format("B"): torch.zeros(3, 4)}, WeightsMissing, "the model wants")
    refused(good | {q.format("A"): torch.full((4, 64), float("nan"))}, WeightsMissing, "finite")
    refused({k: v for k, v in good.items() if k != q.format("B")}, UnsupportedModel, "q_proj")
    head = {f"base_model.model.lm_head.lora_{k}.weight": torch.zeros(4, 4) for k in "AB"}
    refused(good | head, UnsupportedModel, "lm_head")
    refused(good | {"base_model.model.lm_head.weight": torch.zeros(1)}, UnsupportedModel, "lm_head")
    file.write_bytes(b"not it")
    with pytest.raises(WeightsMissing, match="not whole"):
        load_adapter(decoder, "x", adapter)
    file.rename(adapter / "adapter_model.bin")
    with pytest.raises(WeightsMissing, match="pickle") as error:
        load_adapter(decoder, "x", adapter)
    assert "safe_serialization" in error.value.hint
    (adapter / "adapter_config.json").write_text("[")
    with pytest.raises(ModelNotFound, match="cannot read"):
        load_adapter(decoder, "x", adapter)
    with pytest.raises(ModelNotFound, match=r"no adapter_config\.json"):
        load_adapter(decoder, "x", tmp_path)
    assert not adapters(decoder)


def test_the_command_line_takes_an_adapter(command_line, base, two, tmp_path):
    def ask(*options):
        command = ["generate", "Refunds", "--raw", "--json", "--max-tokens", "6", "--model"]
        done = command_line.run(*command, str(base), *options)
        return done.returncode, done.stdout.splitlines()[-1:], done.stderr

    _, plain, _ = ask()
    code, adapted, _ = ask("--adapter", f"tone={two['a']}")
    tokens = [json.loads(line)["output_token_ids"] for line in (*plain, *adapted)]
    assert code == 0 and tokens[0] != tokens[1]
    for wrong, why in ((str(two["a"]), "is not NAME=FOLDER"), (f"x={tmp_path}", "adapter_config")):
        code, _, complaint = ask("--adapter", wrong)
        assert code == 2 and why in complaint and "hint" in complaint


def test_a_name_keeps_its_adapter(base, two):
    executor = TorchExecutor(base, num_blocks=4, adapters=two)
    for name in ("a", ""):
        with pytest.raises(ConfigError, match="adapter"):
            executor.load_adapter(name, two["b"])
    assert executor.adapters == {"a", "b"}


def test_an_adapter_is_added_to_int8_weights_in_floats(base, two):
    kept, floats = Decoder.load(base), Decoder.load(base)
    quantise_weights(kept)
    for one, other in zip(floats.projections(), kept.projections(), strict=True):
        one.weight = dequantise(other.weight, other.multiply.scales)
    floats.vocabulary.weight = dequantise(kept.vocabulary.weight, kept.vocabulary.multiply.scales)
    for decoder in (kept, floats):
        load_adapter(decoder, "a", two["a"])
    assert (logits(kept, "a") - logits(kept, "")).abs().max() > 0.1
    assert (logits(kept, "a") - logits(floats, "a")).abs().max() < 1e-4
