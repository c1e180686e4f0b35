"""The address of a server over HTTP, checked before anything waits for it."""

from __future__ import annotations

from urllib.parse import urlsplit

from minserve.errors import ConfigError

HINT = "write it as http://HOST:PORT"


def check_url(url: str, option: str = "--url", key_option: str = "--key") -> str:
    """`url` without a `/` or `/v1` at its end, if it can be a server's.

    Raises `ConfigError` for one without http:// or https://, without a host, with a port that is
    none, with a query, or with a password, which would show wherever the URL does.
    """
    if "@" in url:
        raise ConfigError(f"{option} has a name or password in it", f"give a key with {key_option}")
    try:
        wrong = _wrong_with(url)
    except ValueError as error:  # from the port, an IPv6 address, or a host that is no name
        wrong = str(error)
    if wrong:
        raise ConfigError(f"{option} {url!r}: {wrong}", HINT)
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _wrong_with(url: str) -> str:
    parts = urlsplit(url)
    if "://" not in url:
        return "it does not begin with http:// or https://"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme!r} is neither http nor https"
    if not parts.hostname:
        return "it names no host"
    parts.hostname.encode("idna")
    if parts.port == 0:
        return "nothing listens on port 0"
    if parts.query or parts.fragment or not url.isprintable() or " " in url:
        return "it has more in it than a host, a port and a path"
    return ""
