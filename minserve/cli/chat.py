"""`minserve chat`: talk to a model in the terminal, on a server or in this process."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minserve.cli.console import Model
from minserve.cli.server_url import URL, Key, http_client, no_access
from minserve.errors import MinserveError

if TYPE_CHECKING:
    from minserve.serving.server import Server

HELP = "/reset forgets what was said, /quit ends; Ctrl-C stops an answer"
Messages = list[dict[str, str]]
Pieces = Generator[str, None, None]
Ask = Callable[[Messages], Pieces]
"""The pieces of the answer to a conversation, as they come; closing it cancels the rest."""


def chat(
    url: Annotated[
        str | None, typer.Option(*URL, help="A server to talk to, such as http://127.0.0.1:8000.")
    ] = None,
    key: Key = None,
    model: Model = "nano",
    system: Annotated[str, typer.Option(help="A system prompt to put in front.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.0,
) -> None:
    """Talk to a model; answers appear as they are written.

    Without --url the model runs in this process. With it, the server says which model it has.
    /reset forgets the conversation, /quit (or Ctrl-D) ends, Ctrl-C stops the answer in progress.

    Examples:

    - `minserve chat --model smollm2`

    - `minserve chat --url http://127.0.0.1:8000 --key $KEY --temperature 0.7`
    """
    options = {"max_tokens": max_tokens, "temperature": temperature}
    if url is not None:
        with http_client(url, key, 600) as client:
            _talk(lambda said: _ask_server(client, {"messages": said, **options}, key), system)
        return
    from minserve.cli.served_engine import EngineSettings, make_server

    print(f"loading {model} ...", file=sys.stderr)
    server = make_server(EngineSettings(model=model))
    server.engine.start()
    try:
        _talk(lambda messages: _ask_here(server, {"messages": messages, **options}), system)
    finally:
        server.engine.stop()


def _talk(ask: Ask, system: str) -> None:
    begin: Messages = [{"role": "system", "content": system}] if system else []
    messages = list(begin)
    print(HELP, file=sys.stderr)
    while True:
        try:
            said = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return
        if said == "/quit":
            return
        if said == "/reset":
            messages = list(begin)
        elif said.startswith("/"):
            print(HELP, file=sys.stderr)
        elif said:
            messages.append({"role": "user", "content": said})
            answer = _show(ask(messages))
            if answer:
                messages.append({"role": "assistant", "content": answer})
            else:
                messages.pop()  # a turn without an answer is taken back: it can be tried again


def _show(pieces: Pieces) -> str:
    """Print an answer as it comes; what there was of it when it ended or was stopped."""
    answer = ""
    try:
        for piece in pieces:
            answer += piece
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pieces.close()
        print(" [stopped]", end="")
    except MinserveError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr, end="")
    print()
    return answer


def _ask_server(client: Any, body: dict[str, Any], key: str | None) -> Pieces:
    import httpx

    path, body = "/v1/chat/completions", {**body, "stream": True}
    try:
        with client.stream("POST", path, json=body) as response:
            if response.status_code == 401:
                raise no_access(key)
            if response.status_code != 200:
                response.read()
                raise MinserveError(response.json()["error"]["message"])
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    yield from _text_of(json.loads(line.removeprefix("data: ")))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        why = f"the server does not answer: {type(error).__name__}: {error}"
        raise MinserveError(why, "is `minserve serve` running?") from None


def _text_of(event: dict[str, Any]) -> Iterator[str]:
    if "error" in event:
        raise MinserveError(event["error"]["message"])
    for choice in event["choices"]:
        yield choice["delta"].get("content") or ""


def _ask_here(server: Server, body: dict[str, Any]) -> Pieces:
    import asyncio

    from minserve.scheduling.admission import Refuse
    from minserve.service import Ended, Piece, Started
    from minserve.serving.calls import Caller
    from minserve.serving.errors import ApiError
    from minserve.serving.identity import OPEN
    from minserve.serving.protocol import ChatRequest

    caller = Caller(OPEN, server.engine.now_s())
    try:
        call = asyncio.run(server.calls.chat(ChatRequest(**body), caller))
    except ApiError as error:
        raise MinserveError(error.message) from None
    request = call.requests[0]
    outputs: queue.SimpleQueue[Started | Piece | Ended | Refuse] = queue.SimpleQueue()
    server.engine.submit(request, outputs.put)
    try:
        while True:
            match outputs.get():
                case Piece(text=text):
                    yield text
                case Refuse(why=why):
                    raise MinserveError(f"not admitted: {why}")
                case Ended(error=why):
                    if why:
                        raise MinserveError(why)
                    return
    finally:
        server.engine.cancel(request.id)  # nothing, if it is over
