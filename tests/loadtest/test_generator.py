"""The generator: intended times, held-back calls, closed loops, and all that a server may do."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from itertools import islice

import pytest

from minserve.clock import EventLoop, VirtualClock
from minserve.errors import ConfigError
from minserve.events import Finished, Submitted, TokensProduced
from minserve.loadtest import arrivals, openai
from minserve.loadtest.datasets import Sample, calls
from minserve.loadtest.generator import (
    Pace,
    Target,
    look_up,
    send_in_process,
    send_over_http,
)
from minserve.loadtest.http import ConnectionBroken
from minserve.loadtest.measures import Tally
from minserve.loadtest.mock_server import DONE, Chunk, Drop, MockServer, Refuse, Wait, simple
from minserve.loadtest.record import CANCELLED, ERROR, OK, REJECTED, TIMEOUT
from minserve.request import SamplingParams

OPEN = Pace()


class SerialServer:
    """An `EngineClient` that serves one request after the other, each in `service_s(number)`."""

    def __init__(self, loop: EventLoop, service_s) -> None:
        self.loop, self.service_s = loop, service_s
        self.free_at_s, self.number = 0.0, 0
        self.listeners = {}

    def send(self, request, listener=lambda event: None) -> None:
        self.listeners[request.id] = listener
        self.loop.at(request.arrival_s, lambda: self._serve(request, listener))

    def _serve(self, request, listener) -> None:
        now_s = self.loop.clock.now_s()
        listener(Submitted(now_s, request.id, 1, "standard"))
        self.free_at_s = max(now_s, self.free_at_s) + self.service_s(self.number)
        self.number += 1

        def end() -> None:
            if self.listeners.pop(request.id, None):
                done_s = self.loop.clock.now_s()
                listener(TokensProduced(done_s, request.id, (1,)))
                listener(Finished(done_s, request.id, "stop", 1))

        self.loop.at(self.free_at_s, end)

    def cancel(self, request_id: str) -> None:
        listener = self.listeners.pop(request_id, None)
        if listener:
            listener(Finished(self.loop.clock.now_s(), request_id, "cancelled", 0))


def sample(max_tokens: int = 1) -> Sample:
    return Sample(token_ids=(1,), sampling=SamplingParams(max_tokens=max_tokens))


def forever(max_tokens: int = 1):
    while True:
        yield sample(max_tokens)


def in_process(times_s, service_s, pace=OPEN, limit=None) -> list:
    loop, records = EventLoop(VirtualClock()), []
    server = SerialServer(loop, service_s)
    send_in_process(calls(times_s, forever(), limit), server, loop, records.append, pace)
    return records


def tally_of(records) -> Tally:
    tally = Tally()
    for record in records:
        tally.add(record)
    return tally


# -- in process, on the virtual clock


def test_one_stall_over_one_connection_shows_only_in_the_corrected_latency():
    records = in_process(
        arrivals.constant(20.0),
        lambda number: 3.0 if number == 2_000 else 0.03,
        Pace(max_concurrency=1),
        limit=6_000,
    )
    m = tally_of(records).measures()
    assert m.num_ok == 6_000
    assert m["ttft.p99"] == pytest.approx(1.8, abs=0.05)
    assert m["uncorrected_ttft.p99"] == pytest.approx(0.03, abs=1e-6)
    assert m["uncorrected_ttft.max"] == pytest.approx(3.0)
    assert m["dispatch_delay.p99"] == pytest.approx(1.77, abs=0.05)


def test_calls_due_at_the_same_time_arrive_together_before_the_server_acts():
    records = in_process([0.0, 1.0, 1.0, 1.0], lambda number: 0.1)
    assert [round(r.sent_s, 6) for r in records] == [0.0, 1.0, 1.0, 1.0]
    assert [round(r.e2e_s, 6) for r in records] == [0.1, 0.1, 0.2, 0.3]


def test_held_back_calls_keep_their_order_and_their_intended_time():
    records = in_process([0.0, 0.1, 0.2], lambda number: 1.0, Pace(max_concurrency=1))
    assert [r.intended_s for r in records] == [0.0, 0.1, 0.2]
    assert [r.sent_s for r in records] == [0.0, 1.0, 2.0]
    assert records[2].dispatch_delay_s == pytest.approx(1.8)


def test_closed_loop_sends_when_an_answer_has_come_and_not_before():
    pace = Pace(max_concurrency=2, is_closed=True)
    records = in_process(arrivals.at_once(), lambda number: 1.0, pace, limit=6)
    assert len(records) == 6
    assert [r.sent_s for r in records] == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert {r.dispatch_delay_s for r in records} == {0.0}


def test_closed_loop_hides_the_stall_that_the_open_loop_shows():
    def service(n):
        return 3.0 if n == 1_000 else 0.03

    closed = in_process(
        arrivals.at_once(), service, Pace(max_concurrency=1, is_closed=True), limit=3_000
    )
    assert tally_of(closed).measures()["e2e.p99"] == pytest.approx(0.03)


def test_timeout_counts_from_the_intended_time_and_cancels():
    records = in_process([0.0, 0.0, 0.0], lambda number: 1.0, Pace(timeout_s=2.5))
    assert [r.outcome for r in records] == [OK, OK, TIMEOUT]
    assert records[2].ended_s == 2.5


def test_calls_are_made_only_when_they_are_due():
    made = []

    def counted():
        for number in range(1_000):
            made.append(number)
            yield sample()

    loop = EventLoop(VirtualClock())
    server, ahead = SerialServer(loop, lambda number: 0.001), []
    send_in_process(
        calls(arrivals.constant(1.0), counted()),
        server,
        loop,
        lambda record: ahead.append(len(made) - record.sent_s),
    )
    assert len(ahead) == 1_000 and max(ahead) <= 2.0


@pytest.mark.parametrize(
    "fields", [{"max_concurrency": 0}, {"is_closed": True}, {"timeout_s": 0.0}]
)
def test_senseless_paces_are_refused(fields):
    with pytest.raises(ConfigError):
        Pace(**fields)


# -- over HTTP


def over_http(script, times_s=(0.0,), pace=OPEN, endpoint=openai.COMPLETIONS, serial=False):
    """Records of calls to a scripted server, in their order, and the server."""
    records = []

    async def run():
        server = MockServer(script, serial)
        async with server.running() as url:
            planned = list(
                calls(times_s, (Sample("hi", sampling=sample(4).sampling) for _ in times_s))
            )
            await send_over_http(planned, Target(url, "mock", endpoint), records.append, pace)
        return server

    server = asyncio.run(run())
    return sorted(records, key=lambda record: record.id), server


def test_streams_are_timed_by_when_their_bytes_come():
    def script(body):
        yield Chunk(role="assistant", text="")
        yield Wait(0.15)
        yield Chunk("a")
        yield Wait(0.1)
        yield Chunk("b", finish="stop")
        yield Wait(0.2)
        yield Chunk(usage=(3, 2))
        yield DONE

    [it], server = over_http(script, endpoint=openai.CHAT)
    assert it.outcome == OK and (it.num_prompt_tokens, it.num_output_tokens) == (3, 2)
    assert it.ttft_s >= 0.15 and it.tpot_s == pytest.approx(0.1, abs=0.08)
    assert it.ended_s - it.times_s[-1] >= 0.15, "the late usage came after the last token"
    assert server.bodies[0]["messages"][0]["content"] == "hi"


def test_every_way_to_fail_is_told_apart():
    scripts = iter(
        [
            [Refuse(429, 7)],
            [Refuse(500)],
            [Chunk("a"), Wait(0.01), Drop()],
            [Chunk("a"), Chunk(error="lost the executor"), DONE],
            [Wait(5.0)],
            [Chunk("a", finish="stop"), DONE],
        ]
    )
    times = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25]
    records, _ = over_http(lambda body: next(scripts), times, Pace(timeout_s=1.5))
    assert [r.outcome for r in records] == [REJECTED, ERROR, ERROR, ERROR, TIMEOUT, OK]
    assert "retry after 7 s" in records[0].error
    assert "closed the connection" in records[2].error
    assert "lost the executor" in records[3].error


def test_connections_are_kept_and_a_closed_one_is_replaced():
    turns = iter([[Chunk("a", finish="stop"), DONE, Drop()], None, None])

    def script(body):
        return next(turns) or [Chunk("a", finish="stop"), DONE]

    records, _ = over_http(script, [0.0, 0.2, 0.4])
    # The first answer's connection is cut before its end, so it fails; the others never notice.
    assert [r.outcome for r in records] == [ERROR, OK, OK]


def test_wait_for_a_slot_is_dispatch_delay():
    def script(body):
        yield Wait(0.1)
        yield Chunk("a", finish="stop")
        yield DONE

    records, _ = over_http(script, [0.0] * 4, Pace(max_concurrency=1))
    delays = [r.dispatch_delay_s for r in records]
    assert delays[3] >= 0.29 and records[3].e2e_s >= 0.39
    assert records[3].uncorrected_e2e_s == pytest.approx(0.1, abs=0.08)


def test_closed_loop_over_http_has_so_many_users():
    records, _ = over_http(simple, [0.0] * 20, Pace(max_concurrency=3, is_closed=True))
    assert [r.outcome for r in records] == [OK] * 20
    assert all(r.dispatch_delay_s < 0.1 for r in records)


def test_nobody_there_is_one_clear_error_for_each_call():
    records = []

    async def run():
        await send_over_http(
            calls([0.0], [Sample("x")]), Target("http://127.0.0.1:9", "m"), records.append
        )

    asyncio.run(run())
    assert records[0].outcome == ERROR and "no server at 127.0.0.1:9" in records[0].error
    with pytest.raises(ConnectionBroken):
        asyncio.run(look_up(Target("http://127.0.0.1:9", "")))


def test_server_is_asked_for_its_models():
    async def run():
        async with MockServer().running() as url:
            return await look_up(Target(url, ""))

    assert asyncio.run(run())["models"] == ["mock"]


def test_tenants_are_told_by_their_keys_alone():
    from minserve.request import Identity

    seen = []

    class Spy(MockServer):
        async def _answer(self, reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            seen.append([x for x in head.decode().split("\r\n") if x.startswith("Authorization")])
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            return await self._play(simple(body), writer, "/v1/completions")

    async def run():
        async with Spy().running() as url:
            samples = [
                Sample("x", identity=Identity(name), sampling=sample().sampling) for name in "ab"
            ]
            target = Target(url, "m", api_key="other")
            keys = {"a": "key-of-a"}
            await send_over_http(calls([0.0, 0.2], samples), target, lambda r: None, api_keys=keys)

    asyncio.run(run())
    assert seen == [["Authorization: Bearer key-of-a"], ["Authorization: Bearer other"]]


@pytest.mark.slow
def test_one_stall_of_a_serial_server_by_the_wall_clock():
    """The same as on the virtual clock, ten times as fast: 3 ms, a stall of 0.3 s, 200 a second."""
    number = iter(range(1_000_000))

    def script(body):
        yield Wait(0.3 if next(number) == 1_000 else 0.002)  # a sleep takes about 1 ms more
        yield Chunk("a", finish="stop")
        yield Chunk(usage=(1, 1))
        yield DONE

    times = list(islice(arrivals.constant(200.0), 4_000))
    records, _ = over_http(script, times, Pace(max_concurrency=1), serial=True)
    m = tally_of(records).measures()
    assert m.num_ok == 4_000
    assert m["ttft.p99"] > 10 * m["uncorrected_ttft.p50"], "the stall is seen from intended times"


@pytest.mark.slow
def test_500_a_second_all_arrive_and_the_delay_of_sending_is_told():
    # How large that delay is, `minserve bench loadgen` measures: no test judges a shared machine.
    program = [sys.executable, "-m", "minserve.loadtest.mock_server"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        try:
            url, tally = server.stdout.readline().strip(), Tally()
            times = arrivals.poisson(500.0, random.Random(1))
            planned = list(calls(times, forever(4), 2_500))
            asyncio.run(send_over_http(planned, Target(url, "mock"), tally.add))
        finally:
            server.kill()
    m = tally.measures()
    assert m.num_ok == 2_500
    assert m["dispatch_delay.p99"] > 0


def test_cancelled_by_the_client_is_its_own_outcome():
    loop, records = EventLoop(VirtualClock()), []
    server = SerialServer(loop, lambda number: 1.0)
    loop.at(0.5, lambda: server.cancel("r-000000"))
    send_in_process(calls([0.0], [sample()]), server, loop, records.append)
    assert records[0].outcome == CANCELLED


def test_a_time_limit_that_nobody_needed_keeps_no_run_waiting():
    loop, records = EventLoop(VirtualClock()), []
    pace = Pace(timeout_s=600.0)
    server = SerialServer(loop, lambda number: 1.0)
    send_in_process(calls([0.0], [sample()]), server, loop, records.append, pace)
    assert [r.outcome for r in records] == [OK]
    assert loop.clock.now_s() < 10
