"""Before a gateway opens: is the upstream there, is it the model that was meant, what is it?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from minserve.errors import ConfigError
from minserve.server_url import check_url
from minserve.serving.calls import TextCodec
from minserve.serving.upstream_answer import message_of
from minserve.serving.upstream_client import CONNECT_S, Upstream
from minserve.serving.upstream_dialects import dialect_of

ASK_EVERY_S = 1.0
PROBE = "Grüße! The deposit is 1,234.50 EUR.\n\tWas it paid? <|endoftext|> 你好"


def find(
    url: str,
    key: str = "",
    model: str | None = None,
    dialect: str = "auto",
    wait_s: float = 0.0,
    stall_s: float = 120.0,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Upstream, dict[str, Any]]:
    """The upstream at `url`, and what it says of its model. Waits for it up to `wait_s`.

    Raises `ConfigError` if it cannot be reached, takes no such key, or has no such model.
    """
    base = check_url(url, "--upstream", "--upstream-key-file")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=base, headers=headers, timeout=CONNECT_S, trust_env=False) as http:
        cards = _models(http, base, wait_s, say)
    card = _chosen(cards, model, base)
    kind = dialect_of(dialect, str(card.get("owned_by", "")))
    return Upstream(base, card["id"], kind, key, stall_s), card


def check_tokens(upstream: Upstream, tokenizer: TextCodec) -> bool | None:
    """Whether a text is the same tokens there and here; None if the upstream does not say."""
    body = {"model": upstream.model, "prompt": PROBE, "add_special_tokens": False}
    try:
        with httpx.Client(headers=upstream.headers, timeout=CONNECT_S, trust_env=False) as http:
            told = http.post(f"{upstream.url}/tokenize", json=body)
        token_ids = told.json()["tokens"] if told.status_code == 200 else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    if token_ids is None:
        return None
    return token_ids == tokenizer.encode(PROBE, add_special_tokens=False)


def _models(
    http: httpx.Client, base: str, wait_s: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    end_s, has_said = time.monotonic() + wait_s, False
    while True:
        try:
            answer = http.get("/v1/models")
            if answer.status_code not in (502, 503, 504):
                break
            why = f"it answers {answer.status_code}"
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
        if time.monotonic() >= end_s:
            raise ConfigError(
                f"the upstream {base} cannot be reached: {why}",
                "start it first, check the address, or wait longer with --wait SECONDS",
            )
        if not has_said:
            say(f"waiting up to {wait_s:g} s for {base}: {why}")
            has_said = True
        time.sleep(min(ASK_EVERY_S, max(0.0, end_s - time.monotonic())))
    if answer.status_code in (401, 403):
        raise ConfigError(
            f"the upstream {base} does not take the gateway's key",
            "put its key into MINSERVE_UPSTREAM_KEY, or a file for --upstream-key-file",
        )
    try:
        told = answer.json()
        cards = [card for card in told["data"] if isinstance(card["id"], str)]
    except (ValueError, KeyError, TypeError):
        cards = []
    if not cards:
        said = f"{answer.status_code}: {message_of(answer.text)[:80]!r}"
        raise ConfigError(f"{base}/v1/models lists no model ({said})", "is it OpenAI-compatible?")
    return cards


def _chosen(cards: list[dict[str, Any]], model: str | None, base: str) -> dict[str, Any]:
    names = [card["id"] for card in cards]
    if model is None and len(cards) > 1:
        raise ConfigError(
            f"{base} has {len(cards)} models", f"choose with --upstream-model: {', '.join(names)}"
        )
    for card in cards:
        if model in (None, card["id"]):
            return card
    raise ConfigError(f"{base} has no model {model!r}", f"it has {', '.join(names)}")
