from __future__ import annotations

import pytest
from live_server import Live


@pytest.fixture(scope="module")
def live():
    """A quick server that tests share as long as they leave it as they found it."""
    with Live() as server:
        yield server
        server.wait_idle()
