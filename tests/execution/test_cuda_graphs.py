"""The padding and the buffers of decode graphs, on the CPU, where recording is calling again."""

from __future__ import annotations

import pytest
import torch
from tiny_llama import generate, row, step, write_checkpoint

from minserve.errors import ConfigError
from minserve.execution.cuda_graphs import DecodeGraphs, can_record
from minserve.execution.executor import Row
from minserve.execution.torch_executor import TorchExecutor
from minserve.models.attention.layout import PagedRows
from minserve.models.attention.reference import PagedAttention
from minserve.request import SamplingParams

PROMPTS = [[(7 * i + 3 * j) % 290 for i in range(20 + 9 * j)] for j in range(5)]


class FromTensors:
    """Attention that knows nothing of the rows but what the tensors say, as a kernel would."""

    def lay_out(self, rows, block_size, device, window=None):
        return PagedRows.of(rows, block_size, device, window)

    def attend(self, queries, keys, values, layout):
        starts = layout.query_starts.tolist()
        rows = [
            row(
                [0] * (end - begin),
                table.tolist(),
                context - (end - begin),
            )
            for begin, end, table, context in zip(
                starts,
                starts[1:],
                layout.block_tables,
                layout.context_lens.tolist(),
                strict=False,
            )
        ]
        reference = PagedAttention()
        layout = reference.lay_out(rows, keys.shape[1], keys.device, layout.window)
        return reference.attend(queries, keys, values, layout)


@pytest.fixture
def recorded():
    """Sizes that were recorded, and how often each was replayed."""
    return {}


@pytest.fixture(params=["Llama", "Mistral"])
def executors(request, tmp_path, recorded):
    """The same model with and without graphs; Mistral has a sliding window."""
    options = {"sliding_window": 12} if request.param == "Mistral" else {}
    folder = write_checkpoint(tmp_path, family=request.param, **options)
    plain, graphed = (TorchExecutor(folder, num_blocks=64, fast=False) for _ in range(2))
    graphed.decoder.attention = FromTensors()
    assert can_record(graphed.decoder) and not can_record(plain.decoder)

    def record(run, pool):
        size = len(run()[1])
        recorded[size] = 0

        def replay():
            recorded[size] += 1
            return run()

        return replay, pool

    graphed.graphs = DecodeGraphs(graphed.decoder, graphed.kv_cache, 512, (1, 2, 4), record)
    return plain, graphed


def blocks(place):
    return tuple(range(8 * place, 8 * place + 8))


def test_recorded_steps_give_the_same_tokens_and_leave_the_same_cache(executors, recorded):
    outputs = []
    for executor in executors:
        tokens = [
            generate(executor, prompt, blocks(place), 1) for place, prompt in enumerate(PROMPTS)
        ]
        for count in (3, 1, 2, 4, 3, 5, 4):  # 5 are more than any graph takes
            rows = [
                row(tokens[i][-1:], blocks(i), len(PROMPTS[i]) + len(tokens[i]) - 1)
                for i in reversed(range(count))
            ]
            result = step(executor, *rows)
            assert not result.errors
            for i, new in zip(reversed(range(count)), result.token_ids, strict=True):
                tokens[i] += new
        outputs.append(tokens)
    assert outputs[0] == outputs[1]
    caches = [executor.kv_cache for executor in executors]
    assert (caches[0] - caches[1]).abs().max() < 1e-5
    assert recorded == {1: 1, 2: 1, 4: 4}


def test_only_plain_decodes_are_replayed(executors):
    graphs = executors[1].graphs
    sampling = SamplingParams()
    decode = row([1], blocks(0), 20)
    assert graphs.fits([decode]) and graphs.fits([decode] * 4)
    assert not graphs.fits([decode] * 5)
    assert not graphs.fits([decode, row([1, 2], blocks(1), 20)])
    assert not graphs.fits([row([1], blocks(0), 20, sample=False)])
    assert not graphs.fits([Row("r", (1,), 20, blocks(0), True, 0, sampling, adapter="a")])


def test_recording_leaves_the_cache_empty(executors):
    assert not executors[1].kv_cache.any()


def test_a_row_that_is_not_finite_fails_alone(executors):
    _, graphed = executors
    [first] = generate(graphed, PROMPTS[0], blocks(0), 1)
    generate(graphed, PROMPTS[1], blocks(1), 1)
    graphed.decoder.embeddings[297] = float("nan")
    good = row([first], blocks(0), len(PROMPTS[0]), position=1)
    bad = row([297], blocks(1), len(PROMPTS[1]), position=1)
    result = step(graphed, bad, good, row([5], blocks(2), 0))
    assert list(result.errors) == [0] and result.token_ids[1] and result.token_ids[2]
    assert torch.isfinite(graphed.kv_cache).all()


def test_a_cpu_wants_to_be_told_how_many_blocks(tiny_folder):
    with pytest.raises(ConfigError, match="num_blocks is not given") as error:
        TorchExecutor(tiny_folder)
    assert error.value.hint
