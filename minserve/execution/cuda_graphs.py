"""CUDA graphs for steps that only decode: a recorded step is launched as one, without Python.

A decode of a small model is hundreds of kernels of a few microseconds each, and launching them
takes longer than they run. A graph replays the same kernels on the same buffers, so a step is
padded to the next of a few sizes, with rows that repeat its first: they compute the same values,
write them to the same slots, and are cut off from the result.

Never yet run on a GPU; the padding and the buffers are tested on the CPU, where "recording" is
calling again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from minserve.execution.executor import Row
from minserve.models.attention.layout import PagedRows
from minserve.models.batch import TokenBatch
from minserve.models.decoder import Decoder
from minserve.request import SamplingParams

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
Step = Callable[[], tuple[Tensor, Tensor]]


def record(step: Step, pool: Any = None) -> tuple[Step, Any]:
    """Capture `step`, which must use the same buffers each time; returns its replay and the
    memory pool that further graphs may share.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # the first run may allocate, compile and choose algorithms
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = step()

    def replay() -> tuple[Tensor, Tensor]:
        graph.replay()
        return result

    return replay, graph.pool()


class DecodeGraphs:
    """Recorded decode steps of `decoder` over `kv_cache`, one for each size.

    Recording writes to block 0 of the cache, so it comes before any request does. Needs an
    attention backend whose layouts hold `PagedRows`; `fits` says which batches it can take.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: Tensor,
        max_model_len: int,
        sizes: Iterable[int] = SIZES,
        record: Callable = record,
    ) -> None:
        self._graphs: dict[int, tuple[TokenBatch, Step]] = {}
        block_size, pool = kv_cache.shape[3], None
        row = Row(
            "",
            (0,),
            max_model_len - 1,
            (0,) * -(-max_model_len // block_size),
            True,
            0,
            SamplingParams(),
        )
        for size in sorted(sizes, reverse=True):  # the largest first: the others fit in its memory
            batch = TokenBatch.of(
                [row] * size,
                block_size,
                decoder.attention,
                str(kv_cache.device),
                decoder.config.windows,
            )
            wanted = torch.arange(size, device=kv_cache.device)

            def step(batch: TokenBatch = batch, wanted: Tensor = wanted):
                return decoder(batch, kv_cache, wanted)

            replay, pool = record(step, pool)
            self._graphs[size] = batch, replay
        self._sizes = sorted(self._graphs)
        kv_cache.zero_()

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether `rows` are decodes without adapters that all sample, and not too many."""
        return len(rows) <= self._sizes[-1] and all(
            len(row.token_ids) == 1 and row.sample and not row.adapter for row in rows
        )

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Logits `[num_rows, vocab]` and whether they are finite `[num_rows]`, as `Decoder` has
        them. They lie in the graph's own memory: use them before the next call.
        """
        num_rows = len(batch.token_ids)
        size = next(size for size in self._sizes if size >= num_rows)
        buffers, replay = self._graphs[size]
        for name in ("token_ids", "positions", "slots"):
            buffer, new = getattr(buffers, name), getattr(batch, name)
            buffer[:num_rows] = new
            buffer[num_rows:] = new[0]
        for window, layout in batch.layouts.items():
            kept, new = rows_of(buffers.layouts[window]), rows_of(layout)
            assert kept is not None and new is not None  # `can_record` has seen to it
            kept.put(new)
        logits, finite = replay()
        return logits[:num_rows], finite[:num_rows]


def rows_of(layout: Any) -> PagedRows | None:
    """The `PagedRows` in a layout; None if the backend keeps none."""
    return layout if isinstance(layout, PagedRows) else getattr(layout, "rows", None)


def can_record(decoder: Decoder) -> bool:
    """Whether the attention backend reads everything that changes from tensors."""
    row = Row("", (0,), 0, (0,), True, 0, SamplingParams())
    layout = decoder.attention.lay_out([row], 1, "cpu")
    return isinstance(rows_of(layout), PagedRows)
