"""A real HTTP server in this process, over an engine whose every event can be looked at.

Its model is simulated: a token is a character, a step takes as long as the test says, and nothing
needs weights. Sockets, threads, uvicorn and the engine's loop are the real ones.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import httpx

from minserve.client import LocalClient
from minserve.engine import Engine
from minserve.events import Event, Finished, StepStarted
from minserve.execution.executor import Row
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.jobs.store import JobStore
from minserve.output import Detokenizer
from minserve.scheduling.admission import Admission
from minserve.service import Service
from minserve.serving.app import create_app
from minserve.serving.calls import ServedModel
from minserve.serving.identity import KeyRing, Salts
from minserve.serving.run import Runner, bind, url_of
from minserve.serving.server import Limits, Server

EOS = 0


class Characters:
    """A tokenizer whose tokens are the characters of Latin-1; a chat is its contents, joined."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("latin-1", "replace"))

    def encode_chat(self, messages: Sequence[dict]) -> list[int]:
        return self.encode("".join(f"{m['role'][0]}:{m['content']}\n" for m in messages))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(t for t in token_ids if t != EOS).decode("latin-1")

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def detokenizer(self, stop: Sequence[str] = ()) -> Detokenizer:
        return Detokenizer(self.decode, stop)


def letters(row: Row) -> int:
    """The answer `abc...z`, over and over."""
    return ord("a") + row.output_position % 26


class Live:
    """A running server. Use it in a `with`."""

    def __init__(
        self,
        step_s: float = 0.002,
        token: Callable[[Row], int] = letters,
        keys: KeyRing | None = None,
        salts: Salts | None = None,
        num_blocks: int = 1024,
        max_model_len: int = 8192,
        executor: SimulatedExecutor | None = None,
        admission: Callable[..., Admission | None] = lambda log: None,
        wrap: Callable[[Service], Service] = lambda service: service,
        make_engine: Callable[..., Engine] = lambda executor, loop: Engine(executor),
        jobs: JobStore | None = None,
        **limits: float,
    ) -> None:
        self.executor = executor or SimulatedExecutor(
            num_blocks,
            cost=CostModel(step_s, 0, 0, 0),
            max_model_len=max_model_len,
            eos_token_ids=frozenset({EOS}),
            token=token,
        )
        model = ServedModel(("letters", "alias"), "root/letters", Characters(), 256, max_model_len)

        def make_service(loop) -> Service:
            self.engine = make_engine(self.executor, loop)
            client = LocalClient(self.engine, loop)
            return wrap(Service(client, model.tokenizer.detokenizer, admission(self.engine.log)))

        self.server = Server(model, make_service, keys, salts or Salts(), Limits(**limits))
        self.app = create_app(self.server, jobs)
        self._listener = bind("127.0.0.1", 0, has_keys=keys is not None)
        self.url = url_of(self._listener)
        self._ready = threading.Event()
        self.runner = Runner(self.app, self.server, self._ready.set)
        self._thread = threading.Thread(
            target=self.runner.run, kwargs={"sockets": [self._listener]}, daemon=True
        )

    def __enter__(self) -> Live:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_) -> None:
        self.stop()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server does not stop"

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        self.runner.should_exit = True

    # -- talking to it

    def client(self, key: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # NOTE: by default each client reads all certificates (17 ms), and nothing here has one.
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)

    def post(self, path: str, body, key: str = "", **headers: str) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        with self.client(key) as client:
            return client.post(path, json=body, headers=headers)

    def get(self, path: str, key: str = "", **headers: str) -> httpx.Response:
        with self.client(key) as client:
            return client.get(path, headers=headers)

    def connect(self, body: dict, path: str = "/v1/completions", **options) -> socket.socket:
        """A raw connection that has sent a request and read nothing."""
        host, port = self._listener.getsockname()[:2]
        connection = socket.socket()
        for name, value in options.items():
            connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        connection.connect((host, port))
        connection.settimeout(30)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content)
        return connection

    # -- looking inside

    @property
    def events(self) -> list[Event]:
        return self.engine.log.events

    def steps_of(self, request_id: str) -> list[int]:
        """The numbers of the steps in which a request had a row."""
        return [
            event.step
            for event in list(self.events)
            if isinstance(event, StepStarted) and any(row[0] == request_id for row in event.rows)
        ]

    def num_steps(self) -> int:
        return sum(isinstance(event, StepStarted) for event in list(self.events))

    def reasons(self) -> list[str]:
        return [event.reason for event in list(self.events) if isinstance(event, Finished)]

    def wait_idle(self, seconds: float = 20) -> None:
        """Until no call is open and the engine holds nothing; then its books must balance."""
        wait_for(lambda: self.server.num_open == 0 and not self._held(), seconds)

        def check() -> None:
            self.engine.check_integrity()
            pool = self.engine.pool
            assert pool.num_used == 0 and pool.num_free + pool.num_cached == pool.num_blocks

        self.server.engine.ask(check).result(10)

    def _held(self) -> bool:
        return self.server.engine.ask(lambda: self.engine.has_unfinished).result(10)


def wait_for(is_true: Callable[[], object], seconds: float = 20) -> None:
    """Until `is_true()`. Fails after `seconds`, which no result depends on."""
    end_s = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.005)


def events_of(response: httpx.Response) -> list[dict | str]:
    """The data of a stream's events, in order; the last is `[DONE]`."""
    return list(iterate(response.iter_lines()))


def iterate(lines: Iterator[str]) -> Iterator[dict | str]:
    for line in lines:
        if line:
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)
