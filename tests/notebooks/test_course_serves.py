"""The whole course, as a learner goes through it: answer every lesson, then let the parts serve."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import built
import httpx
import nbformat
import pytest
from live_server import wait_for

from minserve.learn.parts import SLOTS
from minserve.learn.serving.install import SERVING
from minserve.learn.serving.parts_of_server import POLICIES
from minserve.northstar.prompts import render_user

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    source.with_suffix(".md") for source in (ROOT / "solutions").glob("[0-9][0-9]_*.ipynb")
)
EVIDENCE = ["The late fee of Umber Club is 5 EUR.", "The deposit of Umber Club is 9 EUR."]
QUESTIONS = ("What is the late fee of Umber Club?", "What is the deposit of Umber Club?")
START_S, JOB_S = 240, 240  # generous: kernels may have to be compiled, and CI may be busy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The workspace of a learner who has answered every lesson, through its own cells."""
    from nbclient import NotebookClient

    home = tmp_path_factory.mktemp("Élève 学习 home")
    env = os.environ | {"MINSERVE_HOME": str(home)}
    for source in SOURCES:
        book = nbformat.read(source.with_suffix(".ipynb"), 4)
        client = NotebookClient(book, timeout=240, resources={"metadata": {"path": str(home)}})
        client.execute(env=env)
    return home


def in_lessons() -> set[str]:
    """Every part that some lesson builds."""
    found = (re.findall(r'^part\("(\w+)"', s.read_text(encoding="utf-8"), re.M) for s in SOURCES)
    return {name for names in found for name in names}


class Server:
    """`minserve serve` in a process of its own."""

    def __init__(self, home: Path, *options: str) -> None:
        self.env = os.environ | {"MINSERVE_HOME": str(home)}
        command = [sys.executable, "-m", "minserve", "serve", "--port", "0", "--log-format", "json"]
        self.process = subprocess.Popen(
            [*command, "--kv-memory", "32MB", *options],
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Server:
        wait_for(lambda: self._urls() or self.process.poll() is not None, START_S)
        assert self._urls(), "\n".join(self.lines[-20:])
        self.url = self._urls()[0]
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def client(self):
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def chat(self, question: str, answer_class: str = "default") -> tuple[str, int]:
        """The answer, and how many tokens it has."""
        answer = self.client().chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": render_user(EVIDENCE, question)}],
            temperature=0,
            max_tokens=40,
            extra_headers={"x-answer-class": answer_class},
        )
        return answer.choices[0].message.content, answer.usage.completion_tokens

    def complete(self, prompt: str, max_tokens: int, **more) -> list[str]:
        answer = self.client().completions.create(
            model="nano", prompt=prompt, max_tokens=max_tokens, temperature=0, **more
        )
        return [choice.text for choice in answer.choices]

    def trace(self) -> dict:
        """What `minserve parts --trace --json` says."""
        done = subprocess.run(
            [*(sys.executable, "-m", "minserve", "parts", "--trace", "--json"), "--url", self.url],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def job(self) -> str:
        """Leave a job, and wait until it has ended: its state."""
        order = {"kind": "nap", "payload": {"seconds": 0.01}}
        made = httpx.post(f"{self.url}/v1/jobs", json=order, timeout=30)
        assert made.status_code == 202, made.text
        shown = f"{self.url}/v1/jobs/{made.json()['id']}"
        end_s = time.monotonic() + JOB_S
        while (state := httpx.get(shown, timeout=30).json()["state"]) in ("queued", "running"):
            assert time.monotonic() < end_s, state
            time.sleep(0.2)
        return state

    def _urls(self) -> list[str]:
        found = (json.loads(line) for line in list(self.lines) if line.startswith("{"))
        return [line["url"] for line in found if line.get("event") == "listening"]

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)


def test_every_part_of_the_course_is_built_checked_and_installed(home):
    done = subprocess.run(
        [sys.executable, "-m", "minserve", "progress", "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"MINSERVE_HOME": str(home)},
        timeout=60,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    num = len(in_lessons())
    assert (told["num_built"], told["num_checked"], told["num_installed"]) == (num, num, num)
    assert len(SOURCES) < 6 or in_lessons() == set(SLOTS)
    assert len(SOURCES) < 6 or num >= 18


def test_parts_answer_the_openai_client_as_the_reference_does_and_the_trace_names_them(
    home, tmp_path
):
    prompt = "Northstar answers from the evidence in its prompt. " * 12
    with Server(tmp_path / "nobody") as reference:
        wanted = [reference.chat(question) for question in QUESTIONS]
        completed = reference.complete(prompt, 60), reference.complete(prompt, 30, n=3)
    with Server(home, "--parts", "--jobs", f"sqlite:///{tmp_path}/jobs.db") as mine:
        assert [mine.chat(question) for question in QUESTIONS] == wanted
        assert (mine.complete(prompt, 60), mine.complete(prompt, 30, n=3)) == completed
        for _ in range(2):  # computed, and out of the response cache; then in other words
            assert mine.chat(QUESTIONS[0], "policy") == wanted[0]
        mine.chat("Please tell me the late fee of Umber Club.", "policy")
        if "job_lease" in in_lessons():
            assert mine.job() == "done"
        told = mine.trace()
    assert {p["name"]: p["why"] for p in told["parts"] if p["runs"] != "yours"} == {
        name: "yours is not built yet" for name in serving() - in_lessons()
    }
    gone_through = {name for request in told["requests"] for name in request["parts"]}
    assert gone_through | set(told["at_start"]) == serving() & in_lessons()
    [first, *_] = told["requests"]
    own = {"cache_key", "response_cache", "semantic_gate", "job_lease", "kv_bytes_per_token"}
    assert set(first["parts"]) - own == serving() & in_lessons() - own


def serving() -> set[str]:
    """Parts that serve together: of the batching policies, the one last kept."""
    return {*SERVING} - {*POLICIES} | {"continuous_batching"}


def served_order(server: Server) -> tuple[list[int], int]:
    """Four requests for one place: who was served when, by arrival; and the ordering's version."""

    def arrived() -> int:
        found = httpx.get(f"{server.url}/v1/parts", timeout=30).json()["requests"]
        return sum(request["arrived"] > 0 for request in found)

    def write(number: int) -> None:
        # Each differs, or the response cache would answer it.
        server.complete(f"{number} apples, and then", 250, extra_body={"ignore_eos": True})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        wait_for(lambda n=number: arrived() == n, 60)
    for thread in threads:
        thread.join(240)
    told = server.trace()
    requests = sorted(told["requests"], key=lambda request: request["arrived"])
    [version] = [part["version"] for part in told["parts"] if part["name"] == "ordering"]
    return [request["served"] for request in requests], version


def test_installing_a_legal_but_different_ordering_changes_the_trace(home, monkeypatch):
    with Server(home, "--parts", "--max-running", "1") as server:
        before, old = served_order(server)
    monkeypatch.setenv("MINSERVE_HOME", str(home))
    text = "def latest_first(request, now_s):\n    return -request.arrival_s\n"
    built.keep("ordering", "latest_first", text)
    with Server(home, "--parts", "--max-running", "1") as server:
        after, new = served_order(server)
    assert (before, after) == ([1, 2, 3, 4], [1, 4, 3, 2])
    assert new == old + 1
