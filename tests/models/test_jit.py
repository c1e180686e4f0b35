"""Compiled kernels are kept where the user may write, and never where another could plant code."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minserve.models import jit

pytestmark = pytest.mark.skipif(not jit.is_available(), reason="needs numba")
SCRIPT = """
from minserve.models import jit

def add(a, b):
    return a + b

kernel = jit.kernel("i8(i8, i8)", parallel=False)(add)
print(kernel(1, 2), sum(kernel.stats.cache_hits.values()))
"""


@pytest.fixture
def temporary(monkeypatch, tmp_path) -> Iterator[Path]:
    """The system's temporary folder, for this test; where this user's own would be in it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    jit.folder_for_code.cache_clear()
    yield folder / f"minserve-numba-{os.getuid()}"
    jit.folder_for_code.cache_clear()


@pytest.fixture
def unwritable(tmp_path) -> str:
    """A folder that cannot be made, not even by root: a file is in its way."""
    (tmp_path / "home").write_text("")
    return str(tmp_path / "home" / "numba")


def test_a_home_that_can_be_written_keeps_the_kernels_and_nothing_is_said(
    temporary, tmp_path, capsys
):
    wanted = str(tmp_path / "numba")
    assert jit.folder_for_code(wanted) == wanted
    assert not temporary.exists() and not capsys.readouterr().err


def test_another_home_is_the_users_own_and_said_once(temporary, unwritable, capsys):
    folders = {jit.folder_for_code(unwritable) for _ in range(2)}
    assert folders == {str(temporary / jit._sources())}
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(temporary) in said and unwritable in said


def test_folder_that_others_may_enter_is_not_used(temporary, unwritable, capsys):
    temporary.mkdir(mode=0o755)
    assert jit.folder_for_code(unwritable) is None
    assert "compiled at every start" in capsys.readouterr().err


def test_link_is_not_followed(temporary, unwritable, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    temporary.symlink_to(elsewhere)
    assert jit.folder_for_code(unwritable) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_not_used(temporary, unwritable):
    temporary.mkdir(mode=0o700)
    os.chown(temporary, 12345, 12345)
    assert jit.folder_for_code(unwritable) is None


def test_kernels_are_kept_apart_from_those_of_other_sources(monkeypatch):
    folders = []
    for changed in (None, "vectors.py", "micro_kernel.py"):

        def read(path: Path, changed=changed) -> bytes:
            return path.open("rb").read() + (b"# numba" if path.name == changed else b"")

        monkeypatch.setattr(Path, "read_bytes", read)
        jit._sources.cache_clear()
        folders.append(jit._sources())
    jit._sources.cache_clear()
    assert len(set(folders)) == 3


def test_second_process_finds_the_kernels_of_the_first(unwritable, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    env |= {"MINSERVE_HOME": str(Path(unwritable).parent), "TMPDIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, str(script)], env=env, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert told == ["3 0\n", "3 1\n"]
