"""A server's address is one before anything waits for it."""

from __future__ import annotations

import pytest

from minserve.errors import ConfigError
from minserve.server_url import check_url


@pytest.mark.parametrize(
    "url, words",
    [
        ("", "does not begin with http://"),
        ("notaurl", "does not begin with http://"),
        ("localhost:8000", "does not begin with http://"),
        ("ftp://host", "'ftp' is neither"),
        ("http://", "names no host"),
        ("http:///v1", "names no host"),
        ("http://:8000", "names no host"),
        ("http://host:99999", "Port out of range"),
        ("http://host:0", "port 0"),
        ("http://host:x", "'x'"),
        ("http://[::1", "IPv6"),
        ("http://a..b", "label"),
        ("http://a b", "more in it"),
        ("http://host?key=1", "more in it"),
        ("http://host\n", "more in it"),
    ],
)
def test_what_can_be_no_address_is_refused_with_the_reason(url, words):
    with pytest.raises(ConfigError) as refused:
        check_url(url, "--upstream")
    assert f"--upstream {url!r}: " in str(refused.value) and words in str(refused.value)
    assert refused.value.hint == "write it as http://HOST:PORT"


def test_password_is_refused_and_not_repeated():
    with pytest.raises(ConfigError) as refused:
        check_url("http://ann:secret@host:x")
    assert "secret" not in str(refused.value) and "--key" in refused.value.hint


@pytest.mark.parametrize(
    "url, base",
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://host/", "https://host"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
        ("http://my_host/behind/v1", "http://my_host/behind"),
    ],
)
def test_address_is_taken_with_or_without_its_version(url, base):
    assert check_url(url) == base
