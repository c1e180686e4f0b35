"""The Triton kernel through Triton's own interpreter: no GPU, the same kernel."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="triton is not installed (torch for CPU)"
)
def test_the_kernel_is_dense_attention_whatever_shape_window_and_chunk():
    # The interpreter is chosen when a kernel is defined, so it has a process of its own.
    done = subprocess.run(
        [sys.executable, str(TESTS / "paged_cases.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "40 cases" in done.stdout
