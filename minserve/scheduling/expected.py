"""Shortest first, by the output that is expected, without leaving the long ones for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minserve.request import Request
from minserve.scheduling.ordering import Ordering


def asked_for(request: Request) -> float:
    """What may come at most: all that is known of an answer beforehand, if nobody predicts."""
    return request.sampling.max_tokens


class ShortestExpected(Ordering):
    """Who needs least goes first: that makes the mean wait shortest (Smith, 1956).

    How long an answer gets is not known; `expected(request)` says so many output tokens, by default
    the limit that the request itself sets. A better guess orders better (Fu et al., 2024), and it
    must be the same whenever it is asked. A token counts as `token_s` seconds of patience: a
    request gives way to shorter ones that come up to so much later, and to no others, so nobody
    starves. A prompt token counts as `prompt_weight` output tokens.
    """

    def __init__(
        self,
        expected: Callable[[Request], float] = asked_for,
        token_s: float = 0.02,
        prompt_weight: float = 0.05,
    ) -> None:
        self.expected, self.token_s, self.prompt_weight = expected, token_s, prompt_weight

    def key(self, request: Request, now_s: float) -> Any:
        num_tokens = self.expected(request) + self.prompt_weight * request.num_prompt_tokens
        return request.arrival_s + self.token_s * num_tokens
