"""A learner's attention in the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class OneByOne:
    """An attention backend that calls a learner's function for every token: right, and slow."""

    def __init__(self, attend: Callable) -> None:
        self.attend_one = attend

    def lay_out(
        self, rows: Sequence[Any], block_size: int, device: str, window: int | None = None
    ) -> list:
        """Every token's block table and context length; the lessons' models have no window."""
        return [
            (list(row.block_table), position + 1)
            for row in rows
            for position in range(row.start, row.num_context_tokens)
        ]

    def attend(self, queries: Any, keys: Any, values: Any, layout: list) -> Any:
        """See `minserve.models.attention.Attention.attend`."""
        import torch

        return torch.stack(
            [
                self.attend_one(query, keys, values, table, num_context)
                for query, (table, num_context) in zip(queries, layout, strict=True)
            ]
        )
