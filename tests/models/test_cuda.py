"""Everything that runs only on a GPU: the same conformance cases and token equality as the CPU."""

from __future__ import annotations

import pytest
import torch
from paged_cases import cases, largest_error
from tiny_llama import generate, row, step, write_checkpoint

from minserve.execution.cuda import HEADROOM, default_dtype, kv_memory_bytes
from minserve.execution.torch_executor import TorchExecutor
from minserve.models.attention.cuda import TOLERANCE, VarlenAttention, agrees, best_attention
from minserve.models.attention.reference import PagedAttention
from minserve.models.config import ModelConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
PROMPT = [(7 * i + 3) % 290 for i in range(90)]
BLOCKS = tuple(range(8))


def backends(dtype, group):
    """What this card can run, FlashAttention only in 16 bits."""
    yield PagedAttention()
    if dtype != torch.float32 and torch.cuda.get_device_capability() >= (8, 0):
        yield VarlenAttention()
    try:
        from minserve.models.attention.triton import TritonAttention
    except ImportError:
        return
    yield TritonAttention(group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "window", "contexts"), [*cases()])
def test_every_backend_is_dense_attention(shape, window, contexts, dtype):
    tried = []
    for attention in backends(dtype, shape[0] // shape[1]):
        try:
            error = largest_error(attention, shape, window, contexts, dtype, "cuda")
        except RuntimeError as refusal:
            # FlashAttention 2 wants blocks of 256 tokens; others may want other things.
            assert isinstance(attention, VarlenAttention), refusal
            continue
        tried.append(type(attention).__name__)
        assert error < TOLERANCE[dtype], (tried, error)
    assert tried


def test_the_chosen_backend_is_right_and_not_the_slowest(tiny_folder):
    config = ModelConfig.from_folder(tiny_folder)
    for block_size in (16, 256):
        chosen = best_attention(config, block_size, torch.bfloat16, "cuda")
        assert agrees(chosen, config, block_size, torch.bfloat16, "cuda")
        print(f"blocks of {block_size}: {type(chosen).__name__}")
        assert not isinstance(chosen, PagedAttention), "neither FlashAttention nor Triton works"


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_float32_gives_the_tokens_of_the_cpu(tmp_path, family):
    options = {"sliding_window": 20} if family == "Mistral" else {}
    folder = write_checkpoint(tmp_path, family=family, **options)
    expected, found = (
        generate(
            TorchExecutor(folder, num_blocks=16, device=device, dtype="float32"), PROMPT, BLOCKS, 20
        )
        for device in ("cpu", "cuda")
    )
    assert found == expected


def test_replayed_graphs_give_the_tokens_of_plain_steps(tiny_folder):
    executor = TorchExecutor(tiny_folder, num_blocks=64, device="cuda")
    assert executor.graphs is not None and executor.dtype == default_dtype("cuda")
    graphs, outputs = executor.graphs, []
    for executor.graphs in (graphs, None):
        executor.kv_cache.zero_()
        tokens = [
            generate(executor, PROMPT[:n], range(8 * i, 8 * i + 8), 1)
            for i, n in enumerate((20, 41, 90))
        ]
        for _ in range(10):
            rows = [
                row(t[-1:], range(8 * i, 8 * i + 8), n + len(t) - 1)
                for i, (t, n) in enumerate(zip(tokens, (20, 41, 90), strict=True))
            ]
            for t, new in zip(tokens, step(executor, *rows).token_ids, strict=True):
                t += new
        outputs.append(tokens)
    assert outputs[0] == outputs[1]


def test_the_pool_fills_free_memory_and_leaves_headroom(tiny_folder):
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    budget = kv_memory_bytes("cuda")
    assert budget <= free_bytes - int(HEADROOM * total_bytes) + (64 << 20)
    executor = TorchExecutor(tiny_folder, device="cuda")
    assert executor.kv_bytes_allocated <= budget
    assert executor.num_blocks > 1000
    assert torch.cuda.mem_get_info()[0] > 0.5 * HEADROOM * total_bytes
