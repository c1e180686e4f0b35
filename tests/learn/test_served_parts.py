"""A learner's parts in a real server: they serve, and whatever they do, the server lives on."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import built
import pytest
from live_server import EOS, Live, wait_for

from minserve.learn import parts as learn_parts
from minserve.learn.serving.install import ServingParts
from minserve.scheduling.admission import Admission
from minserve.scheduling.batching import ContinuousBatching
from minserve.scheduling.ordering import Ordering
from minserve.serving.identity import ApiKey, KeyRing, Scope, hash_of

QUICK_S = 0.4  # where a part hangs; elsewhere nobody is to be blamed on a busy machine
ENGINE_PARTS = (
    *("continuous_batching", "engine_step", "ordering"),
    *("block_pool", "block_hashes", "prefix_cache"),
)


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    home = tmp_path / "Élève 学习 home"
    monkeypatch.setenv("MINSERVE_HOME", str(home))
    monkeypatch.setattr(learn_parts, "_live", {})
    return home


@dataclass(frozen=True)
class Limits:
    max_running: int = 8
    token_budget: int = 64
    prefix_caching: bool = True


class Served(Live):
    """A server through the workspace's parts, over a model that computes nothing."""

    def __init__(
        self, policy: str | None = None, max_running: int = 8, limit_s: float = 20.0, **options
    ) -> None:
        self.parts = parts = ServingParts(policy, limit_s=limit_s)
        limits = Limits(max_running)
        super().__init__(
            make_engine=lambda executor, loop: parts.engine(
                executor, limits, ContinuousBatching, Ordering, loop.clock
            ),
            wrap=parts.service,
            salts=parts.salts(Scope.TENANT),
            admission=Admission,
            **options,
        )
        self.parts.attach(self.app, self.server)

    def ask(self, prompt="hello", key="", **more):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 5, **more}, key)

    def told(self, key=""):
        return self.get("/v1/parts", key).json()

    def runs(self, name: str) -> str:
        return next(p["runs"] for p in self.told()["parts"] if p["name"] == name)


def text_of(answer) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


# -- they serve


def test_without_any_part_the_reference_serves_and_a_line_says_so_for_each():
    with Served() as live:
        assert text_of(live.ask()) == "abcde"
        live.wait_idle()
        told = live.told()
    assert {part["runs"] for part in told["parts"]} == {"the reference"}
    assert "block_pool: yours is not built yet, so the reference runs" in live.parts.shelf.lines()
    assert told["requests"][0]["parts"] == {}


def test_a_request_goes_through_every_part_that_is_built_and_the_trace_names_them():
    built.build(*ENGINE_PARTS, "cache_salt", "request_measures")
    with Served() as live:
        answer = live.ask("x" * 70)
        assert text_of(answer) == "abcde"
        again = live.ask("x" * 70)
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        live.wait_idle()
        [first, second] = live.told()["requests"]
    assert first["id"] == answer.json()["id"]
    assert set(first["parts"]) == {*ENGINE_PARTS, "cache_salt", "request_measures"}
    assert (first["state"], first["arrived"], second["served"]) == ("length", 1, 2)
    assert first["parts"]["engine_step"] >= 6  # 70 tokens are read in two steps
    assert first["measures"]["e2e_s"] >= first["measures"]["ttft_s"] > 0


def test_a_part_that_is_built_and_not_installed_does_not_serve():
    built.build("block_pool")
    learn_parts.use("block_pool", "reference")
    with Served() as live:
        text_of(live.ask())
        assert live.runs("block_pool") == "the reference"
    [line] = [line for line in live.parts.shelf.lines() if line.startswith("block_pool")]
    assert "built, and not installed" in line


def test_pool_and_prefix_cache_of_a_learner_hold_under_pressure_with_many_choices():
    built.build("block_pool", "block_hashes", "prefix_cache", "continuous_batching")
    with Served(num_blocks=24) as live:  # 384 tokens: preemptions, evictions, copies on write
        for number in range(6):
            answer = live.ask(f"{number}" * 40, n=5, max_tokens=30)
            texts = [choice["text"] for choice in answer.json()["choices"]]
            assert texts == [("abcdefghijklmnopqrstuvwxyz" * 2)[:30]] * 5
            assert text_of(live.ask("y" * (100 + number)))
        live.wait_idle()
        assert live.engine.prefix_cache.num_evicted_blocks > 0
        assert not any("failed" in part["why"] for part in live.told()["parts"])


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_another_policy_of_the_learners_can_be_chosen(policy):
    built.build("static_batching", "dynamic_batching", "continuous_batching")
    with Served(policy) as live:
        assert text_of(live.ask()) == "abcde"
        assert list(live.told()["requests"][0]["parts"]) == [f"{policy}_batching"]


def test_the_policy_last_kept_serves():
    built.build("continuous_batching")
    built.build("static_batching")
    assert ServingParts().policy_part == "static_batching"


LATEST_FIRST = """
def order(request, now_s):
    return -request.arrival_s
"""


def served_order() -> tuple[list[int], Served]:
    """Four requests with one place, the first served until all are there: who was served when, by
    order of arrival; and the server.
    """
    are_here = threading.Event()

    def until_all_are_here(row) -> int:
        return EOS if are_here.wait(0.002) else ord("a")

    live = Served(max_running=1, token=until_all_are_here)
    with live:
        threads = [
            threading.Thread(target=live.ask, args=("w" * (5 + n),), kwargs={"max_tokens": 8_000})
            for n in range(4)
        ]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            wait_for(lambda n=number: sum(r["arrived"] > 0 for r in live.told()["requests"]) == n)
        are_here.set()
        for thread in threads:
            thread.join()
        live.wait_idle()
        requests = sorted(live.told()["requests"], key=lambda request: request["arrived"])
        return [request["served"] for request in requests], live


def slowly(row) -> int:
    time.sleep(0.02)  # so that the others come while the first is being served
    return ord("a")


def test_installing_a_legal_but_different_ordering_changes_the_trace():
    built.build("ordering", "continuous_batching")
    assert served_order()[0] == [1, 2, 3, 4]
    built.keep("ordering", "order", LATEST_FIRST)
    order, live = served_order()
    assert order == [1, 4, 3, 2]
    assert live.parts.shelf.books["ordering"].version.number == 2


# -- whatever they do, the server lives on

HANGS = "while True: pass"
POLICY = "def mine(view, token_budget, max_running):\n    {}"
ORDER = "def mine(request, now_s):\n    {}"
STEP = "def mine(scheduler, executor, now_s):\n    {}"
HASHES = "def mine(token_ids, block_size, root):\n    {}"
SALT = "def mine(secret, identity, scope):\n    {}"
POOL = """
from minserve.learn import PoolBase
class mine(PoolBase):
    def allocate(self, num_tokens):
        return [self.free.pop() for _ in range(self.blocks_for(num_tokens))]
    def append(self, table, num_held, num_new):
        missing = self.blocks_for(num_held + num_new) - len(table)
        table += [{block} for _ in range(missing)]
        return []
    def share(self, blocks):
        return list(blocks)
    def release(self, table):
        {release}
"""
CACHE = """
class mine:
    def match(self, hashes):
        {match}
    def register(self, hashes, index, block):
        pass
    def evict(self, is_used):
        return None
"""
ADMISSION = """
from minserve.learn.admissions import AdmissionBase
class mine(AdmissionBase):
    def budget(self, request, load):
        {}
    def pressure(self, request, load):
        return None
    def deadline(self, request, load):
        return None
"""
BAD_RELEASES = [
    POOL.format(block="self.free.pop()", release=body)
    for body in ("raise RuntimeError('no')", "pass", HANGS)
]
BAD = {
    "continuous_batching": [
        POLICY.format(body)
        for body in ("raise KeyError('gone')", HANGS, "return 7", "return []", "return None")
    ],
    "ordering": [
        ORDER.format(body)
        for body in ("return 1 / 0", HANGS, "return None", "return float('nan')", "exit()")
    ],
    "engine_step": [
        STEP.format(body)
        for body in ("raise ValueError", HANGS, "return False", "scheduler.plan(now_s)", "1 / 0")
    ],
    "block_pool": [
        POOL.format(block="0", release="table.clear()"),
        POOL.format(block="self.num_blocks", release="table.clear()"),
        POOL.format(block="None.id", release="table.clear()"),
        *BAD_RELEASES,
    ],
    "block_hashes": [
        HASHES.format(body) for body in ("return []", "return 7", HANGS, "raise OSError('disk')")
    ],
    "prefix_cache": [CACHE.format(match=body) for body in ("return None", "1 / 0", HANGS)],
    "cache_salt": [SALT.format(body) for body in ("return ''", "return None", "1 / 0", HANGS)],
    "admission": [ADMISSION.format(body) for body in ("return True", "1 / 0", HANGS)],
}


@pytest.mark.parametrize(
    ("name", "text"),
    [pytest.param(n, t, id=f"{n}-{i}") for n, texts in BAD.items() for i, t in enumerate(texts)],
)
def test_client_is_told_which_part_failed_and_the_reference_goes_on(name, text):
    built.keep(name, "mine", text)
    with Served(limit_s=QUICK_S if HANGS in text else 20.0) as live:
        answers = [live.ask("z" * 40), live.ask("z" * 40)]
        failed = [answer for answer in answers if answer.status_code != 200]
        # A release fails when the answer is out: nobody needs to hear of it.
        assert len(failed) == (0 if text in BAD_RELEASES else 1)
        for answer in failed:
            error = answer.json()["error"]
            assert answer.status_code == 500 and error["code"] == "part_failed"
            assert f"your part {name} failed: " in error["message"]
            assert f"minserve parts use {name} reference" in error["message"]
        assert text_of(live.ask("z" * 40)) == "abcde"
        assert live.get("/health").status_code == 200
        live.wait_idle()
        [part] = [part for part in live.told()["parts"] if part["name"] == name]
        assert part["runs"] == "the reference" and "failed" in part["why"]


@pytest.mark.parametrize("name", ["block_pool", "prefix_cache", "admission"])
def test_a_class_that_cannot_even_be_made_is_left_out_from_the_start(name):
    built.build("continuous_batching")
    text = {"block_pool": POOL.format(block="0", release="pass"), "admission": ADMISSION}.get(
        name, CACHE
    )
    text += "    def __init__(self, *told):\n        1 / 0\n"
    built.keep(name, "mine", text.format("pass", match="pass") if "{" in text else text)
    with Served() as live:
        assert text_of(live.ask()) == "abcde"
        assert live.runs(name) == "the reference" and live.runs("continuous_batching") == "yours"


def test_everybody_in_the_batch_hears_of_it_and_nobody_waits_for_ever():
    built.keep(
        "continuous_batching",
        "mine",
        """
def mine(view, token_budget, max_running):
    if len(view.running) + len(view.waiting) == 3:
        raise KeyError("three")
    return [(r, r.num_to_compute) for r in (*view.running, *view.waiting)]
""",
    )
    answers = []
    with Served(token=slowly) as live:
        threads = [
            threading.Thread(target=lambda: answers.append(live.ask(max_tokens=60)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [a.json()["error"]["code"] for a in answers] == ["part_failed"] * 3
        assert text_of(live.ask()) == "abcde"[:1] * 5


def test_request_measures_that_fails_spoils_no_answer():
    built.keep("request_measures", "mine", "def mine(intended_s, chunks):\n    return 1 / 0")
    with Served() as live:
        assert text_of(live.ask()) == "abcde"
        live.wait_idle()
        assert live.runs("request_measures") == "the reference"


def test_salts_that_let_two_tenants_share_are_refused():
    built.keep("cache_salt", "mine", SALT.format("return 'everybody'"))
    keys = [ApiKey(name, hash_of(name), name, "someone") for name in ("kestrel", "alder")]
    keys.append(ApiKey("op", hash_of("op"), "op", "op", roles=("operator",)))
    with Served(keys=KeyRing(keys)) as live:
        assert text_of(live.ask(key="kestrel")) == "abcde"
        answer = live.ask(key="alder")
        assert "two who may not share" in answer.json()["error"]["message"]
        assert text_of(live.ask(key="alder")) == "abcde"
        assert live.get("/v1/parts", "alder").status_code == 403
        assert live.told("op")["requests"][0]["id"]


def test_code_that_cannot_be_interrupted_is_named():
    built.keep("ordering", "mine", "def mine(request, now_s):\n    import time; time.sleep(2)")
    with Served(limit_s=QUICK_S) as live:
        answer = live.ask()
        assert answer.status_code == 503
        assert "your part ordering does not come back" in answer.json()["error"]["message"]
        assert live.get("/health").status_code == 503
