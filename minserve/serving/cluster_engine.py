"""What stands in the engine's place where the engine is many: the gateway's side of a cluster."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException

from minserve.clock import WallClock
from minserve.errors import ExecutorFailed
from minserve.kv.prefix import block_hashes, root_hash
from minserve.request import FinishReason, Request
from minserve.reuse.key import Wording
from minserve.routing import wire
from minserve.scheduling.quota import NO_QUOTA, Quota
from minserve.service import Ended, Listener, Output

log = logging.getLogger("minserve.cluster")
T = TypeVar("T")
ASK_S = 10.0
NO_AMOUNT = re.compile(rb"[^{ ]*(_perc|_ratio|_risk|_age_seconds|_rung|_load_seconds|_created)\b")
SAMPLE = re.compile(rb"^([^#\s][^\s]*(?:\{.*\})?) (\S+)$", re.M)


class ClusterEngine:
    """Serves requests on replicas. The interface of `EngineThread`; it lives on asyncio's thread.

    A replica that dies takes its streams with it: they end with an error. Where the client has
    heard nothing yet, because nothing came or because it waits for a whole answer, the request is
    sent once more, to another.

    Args:
        handle: Ray Serve's, to the replicas.
        namespace, block_size: Of the replicas' prefix caches, so that the router sees their keys.
    """

    def __init__(self, handle: Any, namespace: str, block_size: int) -> None:
        self._handle = handle.options(stream=True, method_name="serve")
        self._ask = handle.options(method_name="report")
        self._namespace, self._block_size = namespace, block_size
        self._clock = WallClock()
        self._open: dict[str, asyncio.Task[None]] = {}
        self.service = None  # it lives on the replicas
        self.failure: str | None = None
        self.on_death: Callable[[str], None] = lambda why: None
        self.num_retries = 0

    def start(self) -> None:
        """Nothing: Ray has started the replicas."""

    def stop(self, timeout_s: float = 10.0) -> None:
        """End what is open."""
        self.failure = "it was shut down"
        for task in self._open.values():
            task.cancel()

    def now_s(self) -> float:
        return self._clock.now_s()

    def submit(
        self,
        request: Request,
        listener: Listener,
        quota: Quota = NO_QUOTA,
        wording: Wording | None = None,
        is_whole: bool = False,
    ) -> None:
        """See `Service.submit`. With `is_whole` nothing is told before everything is known.

        Raises `ExecutorFailed` if the gateway has been stopped.
        """
        if self.failure is not None:
            raise ExecutorFailed(f"the gateway has stopped: {self.failure}", "start it again")
        carried = self._carry(request, listener, quota, wording, is_whole)
        task = self._open[request.id] = asyncio.get_running_loop().create_task(carried)
        task.add_done_callback(lambda _: self._open.pop(request.id, None))

    def cancel(self, request_id: str) -> None:
        if task := self._open.get(request_id):
            task.cancel()

    def soon(self, call: Callable[[], None]) -> None:
        """Have `call()` called once what is being told is told."""
        asyncio.get_running_loop().call_soon(call)

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """The answer of `question()`. Health is not its affair: see `reports`."""
        answer: Future[T] = Future()
        answer.set_result(question())
        return answer

    async def reports(self, with_metrics: bool = False) -> list[wire.Report]:
        """How each replica is; one that does not answer in time is left out."""
        ids = dict.fromkeys(id for router in wire.routers for id in router.replica_ids)
        asked = (self._report(wire.To(id), with_metrics) for id in ids)
        return [report for report in await asyncio.gather(*asked) if report is not None]

    async def _report(self, to: wire.To, with_metrics: bool) -> wire.Report | None:
        try:
            return await asyncio.wait_for(self._ask.remote(to, with_metrics), ASK_S)
        except (TimeoutError, RayError, RayServeException):
            return None

    def keys_of(self, request: Request) -> tuple[bytes, ...]:
        """The keys under which replicas cache the request's blocks: salted, as there."""
        root = root_hash(self._namespace, request.cache_salt, request.adapter)
        return tuple(block_hashes(request.prompt_token_ids, root, self._block_size))

    async def _carry(
        self,
        request: Request,
        listener: Listener,
        quota: Quota,
        wording: Wording | None,
        is_whole: bool,
    ) -> None:
        keys = self.keys_of(request)
        for attempt in (1, 2):
            now_s = self.now_s()
            left_s = None if request.deadline_s is None else request.deadline_s - now_s
            age_s = now_s - request.arrival_s
            sent = wire.Sent(request, quota, wording, age_s, left_s, keys)
            held: list[Output] = []
            has_told = False
            answer = self._handle.remote(sent)
            try:
                async for outputs in answer:
                    if is_whole:
                        held += outputs
                    else:
                        has_told = True
                        for output in outputs:
                            listener(output)
                for output in held:
                    listener(output)
                return
            except asyncio.CancelledError:
                answer.cancel()
                for index in range(request.sampling.n):
                    listener(Ended(index, FinishReason.CANCELLED))
                return
            except RayActorError:
                log.warning("a replica died under request %s, attempt %d", request.id, attempt)
                if has_told or attempt == 2:
                    return self._lost(request, listener, "the replica that served it died")
                self.num_retries += 1
            except (RayError, RayServeException) as error:
                log.error("request %s failed on its replica: %s", request.id, type(error).__name__)
                return self._lost(request, listener, "its replica failed")

    @staticmethod
    def _lost(request: Request, listener: Listener, why: str) -> None:
        for index in range(request.sampling.n):
            listener(Ended(index, FinishReason.ERROR, why))


def merged(texts: Iterable[bytes]) -> bytes:
    """Several replicas' metrics as one. Help and types are the first text's.

    Amounts (requests, tokens, blocks, seconds spent) are added up; of what is a share, an age or a
    rung the largest is told.
    """
    texts = list(texts)
    totals: dict[bytes, float] = {}
    for text in texts:
        for key, told in SAMPLE.findall(text):
            value, before = float(told), totals.get(key, 0.0)
            totals[key] = max(before, value) if NO_AMOUNT.match(key) else before + value
    lines: list[bytes] = []
    seen: set[bytes] = set()
    for text in texts:
        for line in text.splitlines():
            found = SAMPLE.match(line)
            key = found[1] if found else line
            if key not in seen:
                seen.add(key)
                lines.append(key + f" {totals[key]!r}".encode() if found else line)
    return b"\n".join(lines) + b"\n"
