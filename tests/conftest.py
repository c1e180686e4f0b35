"""What every test may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# NOTE: must be set before torch loads; see minserve/cli/main.py.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
# Many tests have a home of their own: each would compile the kernels anew.
CACHES = Path(__file__).resolve().parents[1] / ".pytest_cache"
os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHES / "numba"))


@pytest.fixture(scope="session")
def require_debian() -> Callable[[str, str], str]:
    """``require_debian(package, binary)`` returns the binary's path.

    Without it the test is skipped, and says what to install. Under ``MINSERVE_CI`` it fails,
    so that a green CI run never hides a test that did not run.
    """

    def require(package: str, binary: str) -> str:
        path = shutil.which(binary)
        if path:
            return path
        reason = f"needs `{binary}`: apt-get install {package}"
        if os.environ.get("MINSERVE_CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)

    return require


@pytest.fixture(scope="session")
def redis_url(require_debian):
    """A redis-server of this test run's own, on a Unix socket, without a file on disk."""
    from minserve.cli.temporary_redis import temporary_redis

    require_debian("redis-server", "redis-server")
    with temporary_redis() as url:
        yield url


@pytest.fixture(scope="session")
def command_line():
    """What runs `minserve` commands; the names of its options are in `CommandLine.run`."""
    from command_line import CommandLine

    made = CommandLine()
    yield made
    made.close()
