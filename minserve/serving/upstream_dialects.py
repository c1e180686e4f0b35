"""What engines elsewhere understand: how a request is put to each kind, and how it answers.

All speak OpenAI's /v1/completions; they differ in what they take beyond it. A field is sent under
the name and with the meaning it has there, or the request is refused: never left out in silence.
Fields as in `CompletionRequest` of vLLM 0.32 and SGLang 0.5.9 (2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minserve.errors import ConfigError
from minserve.request import Request, SamplingParams, WorkloadClass
from minserve.serving.errors import invalid

_DEFAULTS = SamplingParams()
# NOTE: sent even where they ask for nothing. vLLM and SGLang put the model's own defaults
# (generation_config.json) in the place of what a request leaves out.
_COMMON = ("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "n")
_MORE = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of engine.

    `takes_more` than OpenAI: `_MORE`, stop tokens, and usage in every chunk. `no_top_k` is what
    says that there is no limit. `priority_sign` is 0 where there are no priorities, and -1 where
    lower goes first; `salt` is the field that takes a cache salt, and `partition` the header that
    divides caches where the salt is the engine's own. With `names_tokens` the log-probabilities
    come by token id. `health` is a path that answers 200.
    """

    name: str
    takes_more: bool = True
    no_top_k: int = -1
    priority_sign: int = 0
    salt: str = ""
    partition: str = ""
    names_tokens: bool = False
    health: str = "/health"

    @property
    def keeps_apart(self) -> bool:
        """Tenants need not share a prefix cache."""
        return bool(self.salt or self.partition)

    def check(self, request: Request) -> None:
        """Raises `ApiError` (400) for what this kind of engine cannot be asked."""
        sampling, lacking = request.sampling, []
        if not self.takes_more:
            lacking += [n for n in _MORE if getattr(sampling, n) != getattr(_DEFAULTS, n)]
            lacking += ["stop_token_ids"] * bool(sampling.stop_token_ids)
        if sampling.logprobs is not None and not self.names_tokens:
            lacking.append("logprobs")
        if request.priority and not self.priority_sign:
            lacking.append("priority")
        if lacking:
            why = f"{lacking[0]} is not supported: the engine behind this gateway ({self.name}) "
            raise invalid(why + "cannot be asked for it", lacking[0], "unsupported_field")

    def body(self, request: Request, model: str) -> dict[str, Any]:
        """The body of /v1/completions. `request` has passed `check`."""
        sampling = request.sampling
        names = _COMMON + _MORE * self.takes_more
        body = {name: getattr(sampling, name) for name in names}
        body |= {
            "model": model,
            "prompt": list(request.prompt_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.temperature > 0:  # NOTE: greedy needs none, and a seed costs vLLM its batching
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self.takes_more:
            body["stream_options"]["continuous_usage_stats"] = True
            body["top_k"] = sampling.top_k or self.no_top_k
            if sampling.stop_token_ids:
                body["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.logprobs is not None:
            body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
        if request.priority:
            body["priority"] = self.priority_sign * request.priority
        if self.salt:
            body[self.salt] = request.cache_salt
        if self.name == "minserve" and request.workload_class is WorkloadClass.BATCH:
            body["service_tier"] = "flex"
        return body

    def headers(self, request: Request) -> dict[str, str]:
        """Beside the gateway's own key."""
        return {self.partition: request.cache_salt} if self.partition else {}


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("vllm", priority_sign=-1, salt="cache_salt", names_tokens=True),
        Dialect("sglang", salt="cache_salt"),
        Dialect("minserve", no_top_k=0, priority_sign=1, partition="x-cache-partition"),
        Dialect("openai", takes_more=False, health="/v1/models"),
    )
}


def dialect_of(name: str, owned_by: str) -> Dialect:
    """The dialect called `name`; for `auto` that of the model's owner. Raises `ConfigError`."""
    if name == "auto":
        return DIALECTS.get(owned_by, DIALECTS["openai"])
    if name not in DIALECTS:
        raise ConfigError(f"dialect {name!r}", f"use auto or one of {', '.join(DIALECTS)}")
    return DIALECTS[name]
