"""Where a server listens and with which key it is called, for every command that calls one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from minserve.errors import ConfigError, DataNotFound
from minserve.server_url import check_url

if TYPE_CHECKING:
    import httpx

# The second spelling of each is that of other tools.
URL = ("--url", "--base-url")
KEY = ("--key", "--api-key")
KEY_VARIABLE = "MINSERVE_API_KEY"
Url = Annotated[str, typer.Option(*URL, help="Where the server listens.")]
Key = Annotated[str | None, typer.Option(*KEY, envvar=KEY_VARIABLE, help="API key for the server.")]
DEFAULT_URL = "http://127.0.0.1:8000"


def no_access(key: str | None) -> ConfigError:
    """What to say when a server answers 401."""
    what = "the server does not know this API key" if key else "the server asks for an API key"
    return ConfigError(what, f"give one with {KEY[0]} or in the variable {KEY_VARIABLE}")


def http_client(url: str, key: str | None, timeout_s: float) -> httpx.Client:
    """A client of the server at `url`. Raises `ConfigError` if there can be none, or no such key.

    Connecting may take 10 s at most, whatever `timeout_s` is.
    """
    import httpx

    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10))
    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=check_url(url), headers=headers, timeout=timeout)
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise ConfigError(f"cannot call {url!r}: {error}", "check --url and --key") from None


class ServerReader:
    """Reads JSON from a running server, over one connection."""

    def __init__(self, url: str, key: str | None) -> None:
        self._client = http_client(url, key, 10)
        self._url, self._key = url, key

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises `DataNotFound`, and says what the server said."""
        import httpx

        try:
            response = self._client.get(path)
            content = response.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise DataNotFound(
                f"no minserve server answers at {self._url}: {error}",
                "start one with `minserve serve`, or give its --url",
            ) from None
        if response.status_code == 401:
            raise no_access(self._key)
        if response.status_code != 200:
            said = content.get("error", {}) if isinstance(content, dict) else {}
            raise DataNotFound(f"the server says: {said.get('message', content)}")
        return content
