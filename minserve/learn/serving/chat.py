"""The end of the course, in one call: start a server over your parts, talk to it, see the way."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from minserve.errors import ExecutorFailed
from minserve.learn.show import show

START_S = 180.0


def chat_with_parts(*questions: str, model: str = "nano") -> None:
    """Serve `model` through your parts, as `minserve serve --parts` does, and ask it `questions`.

    Shows the answers, and which of your parts each went through. The server ends with the call.
    """
    import httpx

    with server(model) as url, httpx.Client(base_url=url, timeout=120) as client:
        for question in questions:
            message = {"role": "user", "content": question}
            body = {"messages": [message], "temperature": 0, "max_tokens": 64}
            answer = client.post("/v1/chat/completions", json=body).json()
            said = answer.get("error", {}).get("message")
            said = said or answer["choices"][0]["message"]["content"].strip()
            print(f"you:  {question.splitlines()[-1]}\nnano: {said}\n")
        told = client.get("/v1/parts").json()
    _show(told)


@contextlib.contextmanager
def server(model: str = "nano") -> Iterator[str]:
    """A `minserve serve --parts` of its own on a free port; gives its address.

    Raises `ExecutorFailed` if it does not start.
    """
    command = [*(sys.executable, "-m", "minserve", "serve", "--parts", "--model", model)]
    options = ["--port", "0", "--kv-memory", "64MB", "--log-format", "json"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in process.stderr or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        yield _address(lines)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(40)
        process.kill()


def _address(lines: queue.SimpleQueue) -> str:
    deadline_s, said = time.monotonic() + START_S, []
    while time.monotonic() < deadline_s:
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=1.0)
            if line is None:
                break
            said.append(line)
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if told.get("event") == "listening":
                    return told["url"]
    why = said[-1].strip() if said else "it says nothing"
    raise ExecutorFailed(
        f"the server did not start: {why}", "try `minserve serve --parts` yourself"
    )


def _show(told: dict[str, Any]) -> None:
    requests = told["requests"]
    rows = []
    for part in told["parts"]:
        calls = [request["parts"].get(part["name"], "") for request in requests]
        if part["name"] in told["at_start"]:
            calls = ["at start"] * len(requests)
        whose = "yours" if part["runs"] == "yours" else "the reference"
        rows.append((part["name"], whose, *calls))
    numbers = [f"calls for question {number}" for number in range(1, len(requests) + 1)]
    show.table(("part", "whose", *numbers), rows)
