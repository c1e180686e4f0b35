"""How commands that watch a server reach it."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from minserve.errors import ConfigError, DataNotFound

Url = Annotated[str, typer.Option(help="Where the server listens.")]
Key = Annotated[str | None, typer.Option(help="API key; else MINSERVE_API_KEY, if it is set.")]
DEFAULT_URL = "http://127.0.0.1:8000"


class ServerReader:
    """Reads JSON from a running server, over one connection."""

    def __init__(self, url: str, key: str | None) -> None:
        import httpx

        key = key or os.environ.get("MINSERVE_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=10)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ConfigError(f"cannot call {url!r}: {error}", "check --url and --key") from None
        self._url = url

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
        if response.status_code != 200:
            said = content.get("error", {}) if isinstance(content, dict) else {}
            hint = (
                "give a key with --key or MINSERVE_API_KEY" if response.status_code == 401 else ""
            )
            raise DataNotFound(f"the server says: {said.get('message', content)}", hint)
        return content
