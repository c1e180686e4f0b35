from __future__ import annotations

import time

import pytest

from minserve.engine import Engine
from minserve.execution.step_times import PARTS, StepTimes
from minserve.execution.torch_executor import TorchExecutor
from minserve.request import Request, SamplingParams


def test_parts_add_up_to_the_engines_time_and_nothing_stays_behind(tiny_folder):
    executor = TorchExecutor(tiny_folder, num_blocks=16)
    engine = Engine(executor)
    engine.submit(Request("r", tuple(range(40)), SamplingParams(6, ignore_eos=True)), 0.0)
    launch, attend = executor.launch, executor.decoder.attention.attend
    with StepTimes(engine) as times:
        began_s = time.perf_counter()
        while engine.step(0.0):
            pass
        wall_s = time.perf_counter() - began_s
    seconds = times.seconds()
    assert tuple(seconds) == PARTS and times.num_steps == 6
    assert all(value > 0 for value in seconds.values()) and sum(seconds.values()) <= wall_s
    assert executor.launch == launch and executor.decoder.attention.attend == attend
    engine.submit(Request("s", (1, 2), SamplingParams(2)), 0.0)
    while engine.step(0.0):
        pass
    assert times.seconds() == seconds


def test_a_failing_step_is_timed_too(tiny_folder):
    engine = Engine(TorchExecutor(tiny_folder, num_blocks=16))
    engine.executor.collect = None
    engine.submit(Request("r", (1, 2), SamplingParams(2)), 0.0)
    with StepTimes(engine) as times, pytest.raises(Exception, match="executor failed"):
        engine.step(0.0)
    assert times.seconds()["attention"] > 0
