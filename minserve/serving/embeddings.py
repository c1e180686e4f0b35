"""/v1/embeddings: an encoder under dynamic batching, the policy that suits a model of one pass.

It is served by an engine of its own, with the same scheduler and loop as text generation: each
text is a request of one step, and `DynamicBatching` waits a bounded moment for company.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from pydantic import BeforeValidator, Field, WithJsonSchema

from minserve.client import LocalClient
from minserve.clock import EventLoop
from minserve.engine import Engine
from minserve.errors import ExecutorFailed
from minserve.events import Admitted, Event, EventLog, Finished
from minserve.execution.executor import StepPlan, StepResult
from minserve.request import FinishReason, Request, SamplingParams
from minserve.reuse.embedding import Embedder
from minserve.scheduling.admission import Defer, Refuse
from minserve.scheduling.batching import DynamicBatching
from minserve.scheduling.quota import NO_QUOTA, Quota
from minserve.service import Ended, Listener, Output
from minserve.serving.engine_thread import EngineThread
from minserve.serving.errors import ApiError, invalid, of_refusal
from minserve.serving.identity import Principal
from minserve.serving.protocol import Body

if TYPE_CHECKING:
    from minserve.reuse.key import Wording
    from minserve.serving.server import Server

MAX_TEXTS = 256
Text = Annotated[str, Field(min_length=1)]


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class EmbeddingRequest(Body):
    """The body of /v1/embeddings."""

    _unsupported: ClassVar = {"dimensions": ()}
    input: Annotated[
        list[Text],
        BeforeValidator(_texts),
        Field(min_length=1, max_length=MAX_TEXTS),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1},
                        "minItems": 1,
                        "maxItems": MAX_TEXTS,
                    },
                ]
            }
        ),
    ]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = Field(None, description="ignored")


@dataclass(frozen=True, slots=True)
class _Embedded:
    plan: StepPlan
    result: StepResult
    ready_at_s: float | None = None


class EmbeddingExecutor:
    """An `Executor` whose step embeds the texts of its rows; a row's one token means: done."""

    block_size, max_model_len = 1, 2
    eos_token_ids: frozenset[int] = frozenset()
    cache_namespace = "embeddings"

    def __init__(self, embedder: Embedder, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.texts: dict[str, str] = {}
        self.vectors: dict[str, np.ndarray] = {}
        self._embedder = embedder

    def launch(self, plan: StepPlan, now_s: float) -> _Embedded:
        ids, errors = [row.request_id for row in plan.rows], {}
        try:
            vectors = self._embedder.embed([self.texts[id] for id in ids])
            self.vectors |= zip(ids, vectors, strict=True)
        except Exception as error:  # these texts fail; the encoder can still serve others
            errors = dict.fromkeys(range(len(ids)), f"{type(error).__name__}: {error}")
        return _Embedded(plan, StepResult(((0,),) * len(ids), errors))

    def collect(self, handle: _Embedded) -> StepResult:
        return handle.result


class _Service:
    """Serves texts as requests of one step; what `EngineThread` runs."""

    def __init__(self, executor: EmbeddingExecutor, policy: DynamicBatching, loop: EventLoop):
        engine = Engine(executor, policy, prefix_caching=False, log=EventLog(keep=False))
        self.client = LocalClient(engine, loop)

    def submit(
        self,
        request: Request,
        listener: Listener,
        quota: Quota = NO_QUOTA,
        wording: Wording | None = None,
    ) -> None:
        def hear(event: Event) -> None:
            if isinstance(event, Finished):
                listener(Ended(0, FinishReason(event.reason), event.error))

        self.client.send(request, hear)

    def cancel(self, request_id: str) -> None:
        self.client.cancel(request_id)


class Embeddings:
    """Embeds texts for whoever asks, many askers in one batch.

    Args:
        name: What clients call the model.
        embedder: Called on a thread of its own, with at most `batch_size` texts.
        num_tokens: The tokens of a text, for usage.
        max_tokens: A longer text is refused, for the encoder would read its beginning only.
        max_wait_s: How long the first of a batch waits for others.
        prepare: Called once on the embedder's thread, before it embeds anything.
    """

    def __init__(
        self,
        name: str,
        embedder: Embedder,
        num_tokens: Callable[[str], int],
        max_tokens: int = 1 << 30,
        batch_size: int = 32,
        max_wait_s: float = 0.005,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._num_tokens = num_tokens
        self._max_tokens = max_tokens
        self.executor = EmbeddingExecutor(embedder, num_blocks=2 * batch_size)
        policy = DynamicBatching(batch_size, max_wait_s)
        self.thread = EngineThread(partial(_Service, self.executor, policy))
        self._ids = count()
        self._waiting: set[Future] = set()
        self.thread.on_death = self._died
        self.thread.loop.post(prepare)

    @property
    def card(self) -> dict[str, Any]:
        """What /v1/models says of it."""
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "minserve"}

    def count_tokens(self, texts: list[str]) -> int:
        """Of all texts together. Raises `ApiError` (400) for one that is too long."""
        counts = [self._num_tokens(text) for text in texts]
        for index, number in enumerate(counts):
            if number > self._max_tokens:
                why = f"input[{index}] has {number} tokens, the model reads {self._max_tokens}"
                raise invalid(why, f"input[{index}]", "context_length_exceeded")
        return sum(counts)

    async def embed(self, texts: list[str]) -> list[np.ndarray]:
        """A vector for each text. Raises `ApiError`."""
        answers = [self._ask(text) for text in texts]
        return await asyncio.gather(*map(asyncio.wrap_future, answers))

    def _ask(self, text: str) -> Future[np.ndarray]:
        id = f"embd-{next(self._ids)}"
        answer: Future[np.ndarray] = Future()
        request = Request(id, (0,), SamplingParams(max_tokens=1), arrival_s=self.thread.now_s())
        self.executor.texts[id] = text
        self._waiting.add(answer)

        def hear(output: Output) -> None:
            if isinstance(output, Ended):
                self.executor.texts.pop(id, None)
                vector = self.executor.vectors.pop(id, None)
                self._waiting.discard(answer)
                if not answer.set_running_or_notify_cancel():  # its client has gone
                    return
                if vector is None:
                    answer.set_exception(ApiError(500, f"embedding failed: {output.error}"))
                else:
                    answer.set_result(vector)

        try:
            self.thread.submit(request, hear)
        except ExecutorFailed as error:
            self._waiting.discard(answer)
            answer.set_exception(ApiError(503, str(error), code="engine_dead"))
        return answer

    def _died(self, why: str) -> None:
        for answer in list(self._waiting):
            if answer.set_running_or_notify_cancel():
                answer.set_exception(ApiError(503, f"no embeddings: {why}", code="engine_dead"))


def add_routes(app: FastAPI, server: Server, embeddings: Embeddings) -> None:
    """POST /v1/embeddings."""

    @app.post("/v1/embeddings")
    async def embed(body: EmbeddingRequest, request: HttpRequest) -> dict[str, Any]:
        if body.model not in (None, embeddings.name):
            why = f"there is no embedding model {body.model!r} here, only {embeddings.name!r}"
            raise ApiError(404, why, param="model", code="model_not_found")
        num_tokens = embeddings.count_tokens(body.input)
        async with _on_the_books(server, request.scope["state"]["principal"], num_tokens):
            vectors = await embeddings.embed(body.input)
        packed = body.encoding_format == "base64"
        return {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _base64(vector) if packed else vector.tolist(),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": embeddings.name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }


@contextlib.asynccontextmanager
async def _on_the_books(server: Server, principal: Principal, num_tokens: int):
    """One request of so many tokens, held against the same quotas and budgets as text.

    It waits for nobody in the engine of the text, so it is on the books as one that runs. Raises
    `ApiError` where admission refuses it.
    """
    service, now_s = server.engine.service, server.engine.now_s
    admission = service.admission if service else None
    request = Request(
        f"embd-{secrets.token_hex(12)}",
        (0,) * num_tokens,
        SamplingParams(max_tokens=1),
        identity=principal.identity,
        workload_class=principal.workload_class,
        arrival_s=now_s(),
    )
    while admission:
        match admission.ask(request, now_s(), principal.quota):
            case Refuse() as refusal:
                raise of_refusal(refusal)
            case Defer(until_s=until_s):
                await asyncio.sleep(until_s - now_s())
            case _:
                admission.note(Admitted(now_s(), request.id, 0))
                break
    try:
        yield
    finally:
        if admission:
            admission.leave(request.id)


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
