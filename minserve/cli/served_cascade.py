"""The dearer model of `minserve serve --cascade-to`: a second engine, on the first one's loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import jsonschema  # noqa: F401  # loaded now, and not while a first request waits

from minserve.cascaded_service import CascadedService, Route
from minserve.errors import ConfigError, InvalidRequest
from minserve.northstar.caching import policy_table
from minserve.northstar.checks import CHECKS
from minserve.request import Request
from minserve.reuse.validation import Validation

if TYPE_CHECKING:
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.models.tokenizer import Tokenizer
    from minserve.reuse.key import Wording
    from minserve.service import Service


def in_tokens_of(
    tokenizer: Tokenizer, max_model_len: int, now_s: Callable[[], float]
) -> Callable[[Request, Wording, str], Request | None]:
    """Asks another model the same chat; None for what is no chat, is too long for it, or names
    tokens of the first model's.
    """

    def request_of(request: Request, wording: Wording, id: str) -> Request | None:
        turns = [
            {"role": "system" if m.role == "developer" else m.role, "content": m.content}
            for m in wording.messages
        ]
        try:
            prompt = tokenizer.encode_chat(turns) if turns else []
        except (InvalidRequest, ConfigError):  # its template has no place for such a turn
            return None
        sampling = request.sampling
        limit = min(sampling.max_tokens, max_model_len - len(prompt))
        if not prompt or limit < max(1, sampling.min_tokens) or sampling.stop_token_ids:
            return None
        return Request(
            id,
            tuple(prompt),
            replace(sampling, max_tokens=limit),
            identity=request.identity,
            workload_class=request.workload_class,
            arrival_s=now_s(),
            deadline_s=request.deadline_s,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )

    return request_of


def cascaded(
    service: Service, model: str, dearer: Service, executor: TorchExecutor
) -> CascadedService:
    """`service`, whose model is called `model`, and behind it `dearer`, which serves `executor`."""
    tokenizer, clock = executor.tokenizer, service.client.loop.clock
    limit = min(executor.max_model_len, executor.num_blocks * executor.block_size)
    ask = in_tokens_of(tokenizer, limit, clock.now_s)
    validation = Validation(policy_table(), CHECKS)
    return CascadedService(
        service,
        model,
        [Route(tokenizer.folder.name, dearer, ask)],
        lambda w: validation.check_of(w.answer_class, w.messages, w.response_format),
    )
