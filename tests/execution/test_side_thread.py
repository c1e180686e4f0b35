"""A thread that computes beside the engine's raises no team and gives way."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from minserve.execution.passing_thread import on_a_passing_thread
from minserve.execution.side_thread import NICENESS, compute_aside


def test_it_computes_alone_and_everybody_else_as_before():
    here = torch.get_num_threads()
    with ThreadPoolExecutor(1) as engine, ThreadPoolExecutor(1) as aside:
        before = engine.submit(torch.get_num_threads).result()
        aside.submit(compute_aside).result()
        assert aside.submit(torch.get_num_threads).result() == 1
        assert engine.submit(torch.get_num_threads).result() == before
    assert torch.get_num_threads() == here
    assert on_a_passing_thread(torch.get_num_threads)() == here


def test_the_engine_may_begin_after_it():
    here = torch.get_num_threads()
    on_a_passing_thread(compute_aside)()
    assert on_a_passing_thread(torch.get_num_threads)() == here


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_it_alone_is_nicer():
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    here = nice()
    with ThreadPoolExecutor(1) as aside:
        aside.submit(compute_aside).result()
        assert aside.submit(nice).result() == max(here, NICENESS)
    assert nice() == here
