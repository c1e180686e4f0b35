"""Every command that calls a server says at once that its address can be none."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "command",
    [
        "worker --url",
        "chat --url",
        "top --url",
        "trace some-id --url",
        "parts --trace --url",
        "loadtest --base-url",
        "gateway --model nano --port 0 --upstream",
    ],
)
def test_address_that_cannot_work_is_refused(minserve, tmp_path, command):
    store = ("--store", f"sqlite:///{tmp_path}/jobs.db") if command.startswith("worker") else ()
    minserve(command, "notaurl", *store).refused("'notaurl'", "http://HOST:PORT")


def test_empty_address_is_not_taken_for_none(minserve):
    minserve("chat --url", "", input="hello\n").refused("--url ''")
