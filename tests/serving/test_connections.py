"""What a connection is set to."""

from __future__ import annotations

import socket

from live_server import Live


def test_small_answers_do_not_wait_for_an_acknowledgement():
    with Live() as live, live.client() as client:
        client.get("/version")
        (connection,) = live.runner.server_state.connections
        raw = connection.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
