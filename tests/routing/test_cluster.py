"""Replicas on real Ray Serve with real Redis and PostgreSQL; the gateway's own logic without."""

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
pytest.importorskip("ray", reason='a cluster needs pip install "minserve[cluster]"')

from ray.exceptions import RayActorError  # noqa: E402

from minserve.request import FinishReason, Identity, Request, SamplingParams  # noqa: E402
from minserve.routing import wire  # noqa: E402
from minserve.routing.ray_policies import Autoscaler, PrefixRequestRouter  # noqa: E402
from minserve.service import Ended, Piece, Started  # noqa: E402
from minserve.serving.cluster_engine import ClusterEngine, merged  # noqa: E402

ENDED = Ended(0, FinishReason.LENGTH)


class Handle:
    """Stands for Ray's: each answer is a list of batches, or of an exception to raise."""

    def __init__(self, *answers):
        self.answers, self.sent = list(answers), []

    def options(self, **_):
        return self

    def remote(self, sent):
        self.sent.append(sent)
        answer = self.answers.pop(0)

        async def outputs():
            for batch in answer:
                await asyncio.sleep(0)
                if isinstance(batch, Exception):
                    raise batch
                yield batch

        return outputs()


def told(handle, is_whole, request=None):
    request = request or Request("r", tuple(range(40)), SamplingParams(max_tokens=2))
    heard = []

    async def go():
        engine = ClusterEngine(handle, "nano", 16)
        engine.submit(request, heard.append, is_whole=is_whole)
        while engine._open:
            await asyncio.sleep(0.001)
        return engine

    return heard, asyncio.run(go())


DIES = RayActorError()


def test_a_whole_answer_is_asked_for_once_more_when_its_replica_dies_in_the_middle():
    first = [[Started(0)], [Piece(0, "a", 1)], DIES]
    again = [[Started(0)], [Piece(0, "b", 1)], [ENDED]]
    heard, engine = told(Handle(first, again), is_whole=True)
    assert heard == [Started(0), Piece(0, "b", 1), ENDED]
    assert engine.num_retries == 1


def test_a_stream_that_has_begun_ends_with_an_error_that_says_why():
    heard, engine = told(Handle([[Started(0)], [Piece(0, "a", 1)], DIES]), is_whole=False)
    assert heard[:2] == [Started(0), Piece(0, "a", 1)]
    assert heard[2].reason is FinishReason.ERROR and "died" in heard[2].error
    assert engine.num_retries == 0


def test_a_stream_of_which_nothing_was_told_is_sent_once_more_and_only_once():
    heard, _ = told(Handle([DIES], [[Started(0)], [ENDED]]), is_whole=False)
    assert heard == [Started(0), ENDED]
    heard, _ = told(Handle([DIES], [DIES]), is_whole=True)
    assert [output.reason for output in heard] == [FinishReason.ERROR]


def test_a_replica_is_told_relative_times_and_the_salted_keys_of_whole_blocks():
    def sent(salt):
        request = Request("r", tuple(range(40)), SamplingParams(max_tokens=2), cache_salt=salt)
        request.deadline_s = request.arrival_s + 5
        handle = Handle([[ENDED]])
        told(handle, is_whole=True, request=request)
        return handle.sent[0]

    one, other = sent("kestrel"), sent("alder")
    assert len(one.keys) == 2 and not set(one.keys) & set(other.keys)
    assert one.age_s >= 0 and one.left_s == pytest.approx(5 - one.age_s, abs=0.1)


def test_metrics_of_replicas_are_added_up_and_shares_are_not():
    one = b'# TYPE a counter\na_total{x="1"} 2.0\nvllm:kv_cache_usage_perc{m="n"} 0.25\n'
    two = b'# TYPE a counter\na_total{x="1"} 3.0\nvllm:kv_cache_usage_perc{m="n"} 0.75\nb 1.0\n'
    lines = merged([one, two]).decode().splitlines()
    assert lines == [
        "# TYPE a counter",
        'a_total{x="1"} 5.0',
        'vllm:kv_cache_usage_perc{m="n"} 0.75',
        "b 1.0",
    ]


def context(current, target=None, now_s=0.0, **metrics):
    return SimpleNamespace(
        aggregated_metrics={name: dict(enumerate(values)) for name, values in metrics.items()},
        current_num_replicas=current,
        target_num_replicas=target or current,
        current_time=now_s,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
        policy_state={},
    )


def test_replicas_are_added_for_queued_tokens_an_old_queue_or_a_full_cache():
    def wanted(**metrics):
        return Autoscaler(tokens_per_s=100, drain_s=2)(context(2, **metrics))[0]

    assert wanted(queued_tokens=[0, 0], kv_pressure=[0.6, 0.6]) == 2
    assert wanted(queued_tokens=[700, 100]) == 4
    assert wanted(oldest_wait_s=[0, 3]) == 3
    assert wanted(kv_pressure=[0.2, 0.95]) == 3
    assert wanted(queued_tokens=[10**6]) == 8, "never more than allowed"


def looks(scaler, count, every_s, current=3, **metrics):
    """Every number of replicas asked for, where Ray always does as it is told."""
    told = []
    for number in range(count):
        current = scaler(context(current, now_s=number * every_s, **metrics))[0]
        told.append(current)
    return told


def test_replicas_are_taken_away_one_by_one_once_it_has_been_calm_however_often_ray_asks():
    scaler = Autoscaler(tokens_per_s=100, drain_s=2)
    assert looks(scaler, 9, 2.5) == [3, 3, 3, 2, 2, 2, 2, 1, 1]
    often = looks(Autoscaler(tokens_per_s=100, drain_s=2), 60, 0.1)
    assert set(often) == {3}, "six seconds are not calm yet"


def test_warm_replicas_are_kept_beyond_the_need_and_do_not_breed():
    assert looks(Autoscaler(100, 2, num_warm=1), 20, 2.5, current=2) == [2] * 20
    assert looks(Autoscaler(100, 2, num_warm=1), 20, 2.5, current=4)[-1] == 2
    scaler = Autoscaler(100, 2, num_warm=1)
    assert scaler(context(2, queued_tokens=[300, 0]))[0] == 3


# -- real ones


def test_a_question_for_a_replica_that_has_gone_does_not_keep_rays_loop_busy(monkeypatch):
    """Without a pause Ray asks for replicas for ever, and never hears that nobody waits."""
    from ray.serve._private.common import DeploymentID
    from ray.serve.request_router import PendingRequest, ReplicaID

    class Paused(Exception):
        pass

    async def pause(attempt):
        raise Paused

    asked = []
    router = object.__new__(PrefixRequestRouter)
    here = SimpleNamespace(replica_id=ReplicaID("here", DeploymentID("Replica")))
    router._replicas, router._replicas_list = {"here": here}, [here]
    router.num_routing_tasks_in_backoff = 0
    router.num_routing_tasks_in_backoff_gauge = SimpleNamespace(set=lambda value: None)
    monkeypatch.setattr(router, "_backoff", pause)
    choose = router.choose_replicas

    async def choose_counted(*args, **kwargs):
        asked.append(1)
        assert len(asked) < 100, "it asks again and again without a pause"
        return await choose(*args, **kwargs)

    monkeypatch.setattr(router, "choose_replicas", choose_counted)

    async def go():
        pending = PendingRequest(args=[wire.To("gone")], kwargs={}, metadata=None)
        async for _ in router._choose_replicas_with_backoff(pending):
            raise AssertionError("another replica was chosen")

    with pytest.raises(Paused):
        asyncio.run(go())


@pytest.mark.slow
def test_demo_shows_every_property_on_real_replicas(require_debian):
    require_debian("redis-server", "redis-server")
    command = [sys.executable, "-m", "minserve", "cluster", "demo", "--rounds", "8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and figures["fails"] == [], figures
    assert len(figures["holds"]) >= 7


@pytest.mark.slow
def test_sigterm_while_replicas_start_ends_it_without_a_trace_of_native_code():
    command = [sys.executable, "-m", "minserve", "cluster", "up", "--replicas", "1", "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as started:
        line = next(line for line in started.stdout if "starting 1 replicas" in line)
        started.terminate()
        said = line + started.communicate(timeout=120)[0]
    assert started.returncode == 130, said
    assert "SIGTERM received" not in said and "Traceback" not in said, said


@pytest.mark.slow
def test_northstar_asks_through_the_openai_client_and_a_report_becomes_a_job(
    redis_url, require_debian
):
    import httpx
    import openai

    from minserve.cli import cluster
    from minserve.cli.callers import demo_keys
    from minserve.cli.jobs import open_store
    from minserve.cli.temporary_postgres import TemporaryPostgres, binaries
    from minserve.northstar.corpus import load_corpus, load_demo_keys
    from minserve.northstar.questions import is_qualified, load_questions, prompt_of
    from minserve.serving.identity import KeyRing

    if binaries() is None:
        require_debian("initdb", "postgresql")
    secrets, corpus = load_demo_keys(), load_corpus("v1")
    questions = [question for question in load_questions() if question.user][:16]
    stranger = next(user for user in secrets if user != questions[0].user)

    asking = next(user for user in corpus.users if user.id == questions[0].user)
    identity = Identity(asking.tenant, asking.id)

    def bearer(user):
        return {"authorization": f"Bearer {secrets[user]}"}

    with TemporaryPostgres(fsync=False) as postgres, cluster.ray_running(None, 2.0):
        store = open_store(postgres.url)
        with cluster.running(
            "nano", 2, 512, keys=KeyRing(demo_keys()), response_cache=redis_url, jobs=store
        ) as two:
            answers = []
            for question in questions:
                client = openai.OpenAI(base_url=f"{two.url}/v1", api_key=secrets[question.user])
                reply = client.completions.create(
                    model="nano", prompt=prompt_of(question, corpus), max_tokens=60, temperature=0
                )
                answers.append(reply.choices[0].text)
            chunks = client.chat.completions.create(
                model="nano",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=5,
                stream=True,
            )
            assert sum(bool(chunk.choices) for chunk in chunks) >= 2
            with pytest.raises(openai.BadRequestError):
                client.completions.create(
                    model="nano", prompt="x", extra_body={"tenant": "somebody-else"}
                )
            served = [report.num_queried_tokens for report in two.reports()]
            job = {"kind": "nap", "payload": {"seconds": 0.0}}
            made = httpx.post(f"{two.url}/v1/jobs", json=job, headers=bearer(questions[0].user))
            assert made.status_code == 202, made.text
            where = two.url + made.json()["status_url"]
            assert httpx.get(where, headers=bearer(questions[0].user)).json()["state"] == "queued"
            assert httpx.get(where, headers=bearer(stranger)).status_code == 404
        assert store.get(identity, made.json()["id"]).state == "queued", "it outlives the gateway"
    assert min(served) > 0, "both replicas served"
    right = sum(is_qualified(q, a, "v1") for q, a in zip(questions, answers, strict=True))
    assert right >= 0.8 * len(questions), answers
