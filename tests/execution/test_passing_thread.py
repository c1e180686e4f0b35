"""The thread that loads a model is over before another one serves it."""

import subprocess
import sys
import threading

import pytest

from minserve.cli.served_engine import EngineSettings, make_server
from minserve.errors import ConfigError
from minserve.execution import torch_executor
from minserve.execution.passing_thread import on_a_passing_thread


def test_what_it_returns_and_raises_comes_through():
    assert on_a_passing_thread(lambda a, *, b: (a, b))(1, b=2) == (1, 2)
    with pytest.raises(ConfigError, match="no good"):
        on_a_passing_thread(_fail)()


def test_ctrl_c_does_not_wait_for_it():
    program = (
        "import _thread, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "from minserve.execution.passing_thread import on_a_passing_thread\n"
        "def endless():\n"
        "    _thread.interrupt_main()\n"
        "    threading.Event().wait()\n"
        "try: on_a_passing_thread(endless)()\n"
        "except KeyboardInterrupt: print('stopped')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == b"stopped"


def _fail():
    raise ConfigError("no good", "do better")


def test_a_servers_model_is_loaded_by_a_thread_that_is_over(monkeypatch):
    threads = []

    class Seen(torch_executor.TorchExecutor):
        def __init__(self, *args, **options):
            threads.append(threading.current_thread())
            super().__init__(*args, **options)

    monkeypatch.setattr(torch_executor, "TorchExecutor", Seen)
    make_server(EngineSettings("nano", num_blocks=16))
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread() and not threads[0].is_alive()
