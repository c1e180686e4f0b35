"""How a worker's handlers reach an engine: one in their own process, or a server over HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from minserve.cli.server_url import http_client
from minserve.jobs.job import JobFailed
from minserve.request import Identity, Request, SamplingParams, WorkloadClass


def connect(settings: Mapping[str, Any]):
    """What `settings` ask for: `url` (and `api_key`) of a server, or the name of a `model`."""
    if settings.get("url") is not None:
        return ServerGenerate(settings["url"], settings.get("api_key"))
    return LocalGenerate(settings["model"])


class LocalGenerate:
    """An engine in this process, reached through `EngineClient`, in batch class."""

    def __init__(self, model: str) -> None:
        import torch

        from minserve.client import LocalClient
        from minserve.clock import EventLoop, WallClock
        from minserve.engine import Engine
        from minserve.execution.torch_executor import TorchExecutor
        from minserve.models.registry import resolve

        torch.set_num_threads(1)
        folder = resolve(model)
        executor = TorchExecutor(folder, num_blocks=512)
        self._tokenizer = executor.tokenizer
        self._client = LocalClient(Engine(executor), EventLoop(WallClock()))
        self._numbers = itertools.count()
        self._name = folder.name

    def text(self, prompt: str, identity: Identity, max_tokens: int) -> str:
        sampling = SamplingParams(max_tokens=max_tokens)
        token_ids = self._tokenizer.encode(prompt)
        return self._tokenizer.decode(self._generate(token_ids, identity, sampling))

    def chat(self, body: dict[str, Any], identity: Identity) -> dict[str, Any]:
        sampling = SamplingParams(max_tokens=body.get("max_tokens") or 128)
        token_ids = self._tokenizer.encode_chat(body["messages"])
        text = self._tokenizer.decode(self._generate(token_ids, identity, sampling))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"object": "chat.completion", "model": self._name, "choices": [choice]}

    def _generate(
        self, token_ids: Sequence[int], identity: Identity, sampling: SamplingParams
    ) -> list[int]:
        request = Request(
            f"job-{next(self._numbers)}",
            tuple(token_ids),
            sampling,
            identity=identity,
            workload_class=WorkloadClass.BATCH,
            cache_salt=identity.tenant,
            arrival_s=self._client.loop.clock.now_s(),
        )
        self._client.send(request)
        self._client.run()
        if request.error:
            raise JobFailed(request.error)
        return request.output_token_ids


class ServerGenerate:
    """A server's API. Raises `ConfigError` for a URL or a key that can be none.

    NOTE: the server sees the worker's own key, not the job's identity: point a worker at a server
    only for jobs of that key's tenant; the local engine serves all.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self._http = http_client(url, api_key, 600)

    def text(self, prompt: str, identity: Identity, max_tokens: int) -> str:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self._post("/v1/completions", body)["choices"][0]["text"]

    def chat(self, body: dict[str, Any], identity: Identity) -> dict[str, Any]:
        return self._post("/v1/chat/completions", body)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        import httpx

        try:
            answer = self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise JobFailed(f"the engine does not answer: {error}") from None
        if answer.is_success:
            return answer.json()
        retry_after = answer.headers.get("retry-after", "")
        raise JobFailed(
            f"the engine answered {answer.status_code}: {answer.text[:300]}",
            retry_after_s=float(retry_after) if retry_after.isdigit() else 0.0,
            is_permanent=400 <= answer.status_code < 500 and answer.status_code not in (408, 429),
        )
