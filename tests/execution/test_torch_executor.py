from __future__ import annotations

import random
import time

import pytest
import torch
from tiny_llama import generate, row, step, write_checkpoint

from minserve.errors import ConfigError, ModelNotFound
from minserve.execution.executor import BlockCopy, Row
from minserve.execution.torch_executor import TorchExecutor, fingerprint, num_blocks_for
from minserve.kv.estimate import KVShape
from minserve.models.config import ModelConfig
from minserve.request import SamplingParams

PROMPT = [(7 * i + 3) % 290 for i in range(90)]
BLOCKS = tuple(range(8))


@pytest.fixture(scope="module")
def executor(tiny_folder):
    return TorchExecutor(tiny_folder, num_blocks=64)


def test_greedy_tokens_equal_transformers(executor, tiny_folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    out = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=25, do_sample=False, eos_token_id=None
    )
    assert generate(executor, PROMPT, BLOCKS, 25) == out[0, len(PROMPT) :].tolist()


def test_kv_bytes_are_what_the_estimate_says(executor):
    c = executor.config
    shape = KVShape(c.num_hidden_layers, c.num_kv_heads, c.head_dim)
    assert executor.kv_bytes_allocated == 64 * 16 * shape.bytes_per_token("float32")


def test_blocks_fill_a_memory_budget_and_no_more():
    config = ModelConfig.from_dict(
        {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "vocab_size": 49152,
        }
    )
    assert num_blocks_for(config, 10 * 16 * 46_080 + 1, 16, "float32") == 10
    with pytest.raises(ConfigError, match="hold no KV block"):
        num_blocks_for(config, 1000)


def test_mixed_rows_come_back_in_the_plans_order(executor):
    expected = generate(executor, PROMPT, BLOCKS, 3)
    # The same sequence as a decode, a whole prompt, and a chunk that does not sample.
    again = (*range(8, 16),)
    first = step(
        executor,
        row(PROMPT[:50], again, sample=False),
        row(expected[:1], BLOCKS, len(PROMPT), position=1),
        row(PROMPT, range(16, 24)),
    )
    assert first.token_ids == ((), (expected[1],), (expected[0],)) and not first.errors
    second = step(executor, row(PROMPT[50:], again, 50))
    assert second.token_ids == ((expected[0],),)


def test_copied_blocks_are_copied_before_the_step(executor):
    expected = generate(executor, PROMPT, BLOCKS, 4)
    copies = [BlockCopy(b, 32 + b) for b in BLOCKS]
    result = step(
        executor,
        row(expected[1:2], range(32, 40), len(PROMPT) + 1, position=2),
        copies=copies,
    )
    assert result.token_ids == ((expected[2],),)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (row([1, 300], BLOCKS), "vocabulary of 300"),
        (row([-1], BLOCKS), "vocabulary of 300"),
        (row([1] * 3, range(40), 511), "beyond 512 tokens"),
        (Row("r", (1,), 0, BLOCKS, True, 0, SamplingParams(), adapter="x"), "'x' is not loaded"),
    ],
)
def test_a_row_that_cannot_be_computed_fails_alone(executor, bad, why):
    [expected] = generate(executor, PROMPT, BLOCKS, 1)
    result = step(executor, row(PROMPT, range(8, 16)), bad, row(PROMPT, range(16, 24)))
    assert result.token_ids == ((expected,), (), (expected,))
    assert list(result.errors) == [1] and why in result.errors[1]
    assert step(executor, bad).token_ids == ((),)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_nan_fails_its_row_alone_and_leaves_no_trace_in_the_cache(tiny_folder, batch_invariant):
    executor = TorchExecutor(tiny_folder, num_blocks=16, batch_invariant=batch_invariant)
    expected = generate(executor, PROMPT, BLOCKS, 2)
    decoder = executor.decoder
    decoder.embeddings = decoder.embeddings[torch.arange(decoder.config.vocab_size)]
    decoder.embeddings[297] = float("nan")
    poisoned = row([5] * 10 + [297] + [5] * 30, range(8, 16))
    silent = row([5] * 10 + [297], range(11, 16), sample=False)
    for bad in (poisoned, silent):
        result = step(executor, bad, row(expected[:1], BLOCKS, len(PROMPT), position=1))
        assert result.token_ids == ((), (expected[1],))
        assert list(result.errors) == [0] and "not finite" in result.errors[0]
        assert executor.kv_cache.isfinite().all()
    # Whoever has the blocks next is not disturbed.
    assert generate(executor, PROMPT, range(8, 16), 2) == expected


def test_seeded_output_does_not_depend_on_neighbours(executor):
    def params(seed):
        return SamplingParams(temperature=0.9, top_k=50, top_p=0.95, seed=seed, max_tokens=20)

    alone = generate(executor, PROMPT, BLOCKS, 6, params(11))
    assert alone == generate(executor, PROMPT, BLOCKS, 6, params(11))
    assert alone != generate(executor, PROMPT, BLOCKS, 6, params(12))
    first = step(
        executor,
        row(PROMPT[:40], range(8, 16), sampling=params(3)),
        row(PROMPT, range(16, 24), sampling=params(11)),
        row(PROMPT, range(24, 32)),
    )
    assert first.token_ids[1] == (alone[0],)


def test_bad_settings_are_refused_in_one_line(tiny_folder, tmp_path):
    for options, why in [
        ({"num_blocks": 0}, "0 blocks"),
        ({"num_blocks": 4, "dtype": "int3"}, "int3"),
        ({"num_blocks": 4, "device": "abacus"}, "abacus"),
        ({"num_blocks": 4, "max_model_len": 513}, "513"),
    ]:
        with pytest.raises(ConfigError, match=why) as error:
            TorchExecutor(tiny_folder, **options)
        assert error.value.hint
    with pytest.raises(ModelNotFound):
        TorchExecutor(tmp_path, num_blocks=4)


def test_namespace_names_weights_tokenizer_and_precision(tiny_folder, tmp_path):
    other = write_checkpoint(tmp_path / "other", seed=1)
    names = [
        fingerprint(tiny_folder, "float32"),
        fingerprint(tiny_folder, "float16"),
        fingerprint(other, "float32"),
    ]
    (other / "chat_template.jinja").write_text("{{ messages }}")
    names.append(fingerprint(other, "float32"))
    assert len(set(names)) == 4
    assert fingerprint(tiny_folder, "float32") == names[0]


def test_nano_loads_quickly():
    try:
        began = time.perf_counter()
        executor = TorchExecutor("nano", num_blocks=256)
    except ModelNotFound:
        pytest.skip("data/models/northstar-nano is not trained yet")
    print(f"nano loads in {time.perf_counter() - began:.2f} s")
    assert executor.eos_token_ids


@pytest.fixture(scope="module", params=["tiny", "nano", "tiny bfloat16"])
def invariant(request, tiny_folder):
    """A batch-invariant executor."""
    name, _, dtype = request.param.partition(" ")
    model = tiny_folder if name == "tiny" else name
    try:
        return TorchExecutor(model, num_blocks=256, batch_invariant=True, dtype=dtype or "float32")
    except ModelNotFound:
        pytest.skip("data/models/northstar-nano is not trained yet")


class TestBatchInvariant:
    """The same bits, however a token comes to be computed."""

    def logits(self, executor, *rows) -> list[torch.Tensor]:
        """The logits of each row's last token."""
        caught = []
        decoder = executor.decoder

        def catch(batch, kv_cache, wanted):
            logits, finite = decoder(batch, kv_cache, wanted)
            caught.append(logits)
            return logits, finite

        executor.decoder = catch
        catch.attention = decoder.attention
        try:
            result = step(executor, *rows)
        finally:
            executor.decoder = decoder
        assert not result.errors
        return list(caught[0])

    def test_logits_are_bit_identical_in_any_company_and_any_chunks(self, invariant):
        rng = random.Random(0)
        executor, per_row = invariant, 16
        vocab = executor.config.vocab_size
        prompts = [
            [rng.randrange(vocab) for _ in range(rng.choice([1, 5, 16, 17, 64, 65, 130, 200]))]
            for _ in range(12)
        ]

        def blocks(slot):
            return tuple(range(slot * per_row, (slot + 1) * per_row))

        alone = []
        for prompt in prompts:
            executor.kv_cache.zero_()
            [logits] = self.logits(executor, row(prompt, blocks(0)))
            alone.append((logits, executor.kv_cache[:, :, :per_row].clone()))

        for trial in range(25):
            # Some prompts, in some order and slots, cut at random, run side by side.
            executor.kv_cache.normal_(generator=torch.Generator().manual_seed(trial))
            chosen = rng.sample(range(12), rng.randint(1, 12))
            slots = dict(zip(chosen, rng.sample(range(16), len(chosen)), strict=True))
            done = dict.fromkeys(chosen, 0)
            while done:
                rows, members = [], rng.sample(list(done), rng.randint(1, len(done)))
                for i in members:
                    left = len(prompts[i]) - done[i]
                    size = rng.choice([1, left, rng.randint(1, left)])
                    tokens = prompts[i][done[i] : done[i] + size]
                    rows.append(row(tokens, blocks(slots[i]), done[i]))
                for i, r, logits in zip(members, rows, self.logits(executor, *rows), strict=True):
                    done[i] += len(r.token_ids)
                    if done[i] == len(prompts[i]):
                        del done[i]
                        assert torch.equal(logits, alone[i][0])
                        kv = executor.kv_cache[:, :, list(blocks(slots[i]))].flatten(2, 3)
                        kept = slice(0, len(prompts[i]))
                        assert torch.equal(kv[:, :, kept], alone[i][1].flatten(2, 3)[:, :, kept])

    def test_a_prefix_hit_and_a_preemption_change_no_bit(self, invariant):
        vocab = invariant.config.vocab_size
        prompt = [(11 * i + 2) % vocab for i in range(70)]
        tokens = generate(invariant, prompt, BLOCKS, 10)
        full = prompt + tokens[:9]
        [decoded] = self.logits(invariant, row(tokens[8:9], BLOCKS, 78, position=9))
        # Recomputed from nothing, as after a preemption; then upon the first four blocks.
        [recomputed] = self.logits(invariant, row(full, range(16, 24), position=9))
        shared = (*range(16, 20), *range(32, 36))
        [hit] = self.logits(invariant, row(full[64:], shared, 64, position=9))
        assert torch.equal(decoded, recomputed) and torch.equal(decoded, hit)

    def test_it_agrees_with_the_fast_mode(self, invariant):
        fast = TorchExecutor(invariant.model_folder, num_blocks=16, dtype=invariant.dtype)
        prompt = [(11 * i + 2) % invariant.config.vocab_size for i in range(70)]
        [a] = self.logits(fast, row(prompt, BLOCKS))
        [b] = self.logits(invariant, row(prompt, BLOCKS))
        assert (a - b).abs().max() < (1e-3 if invariant.dtype == "float32" else 0.1)
