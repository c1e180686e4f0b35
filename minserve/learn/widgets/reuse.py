"""Interactive pictures of lesson 5: what a key lets meet, and what a threshold lets through."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from html import escape
from typing import Any

from minserve.learn.plots import Picture, false_hits, key_outcomes
from minserve.learn.widgets import interactive
from minserve.request import Identity
from minserve.reuse.key import Decoding, Message, ModelTuple, Query, Scope

ADMIN = frozenset({"admin"})
FIRST = Query(
    identity=Identity("alder", "anna", ADMIN),
    scope=Scope.TENANT,
    answer_class="policy",
    messages=(Message("user", "Does the US café refund me?"),),
    model=ModelTuple("nano", "r1"),
    decoding=Decoding(temperature=0.0, max_tokens=48),
    policy_version="v1",
    locale="en",
)
"""The request whose answer is in the cache, for everybody of its tenant with the same roles."""


def _asks(text: str) -> Query:
    return replace(FIRST, messages=(Message("user", text),))


# What comes second: how it differs, the request, its id, and what a common key would do to it.
SECOND: tuple[tuple[str, Query, str, str], ...] = (
    ("the same again, a second later", FIRST, "req-2", "hit"),
    (
        "a colleague with the same role asks",
        replace(FIRST, identity=Identity("alder", "bob", ADMIN)),
        "req-2",
        "hit",
    ),
    ("é typed in two strokes", _asks(unicodedata.normalize("NFD", FIRST.question)), "req-2", "hit"),
    (
        "another tenant asks",
        replace(FIRST, identity=Identity("marlow", "mia", ADMIN)),
        "req-2",
        "leak",
    ),
    (
        "a colleague who is no admin asks",
        replace(FIRST, identity=Identity("alder", "carl")),
        "req-2",
        "leak",
    ),
    ('"us" and not "US"', _asks("Does the us café refund me?"), "req-2", "wrong"),
    (
        "the same words, later in a chat",
        replace(FIRST, messages=(Message("user", "I am in Peru."), *FIRST.messages)),
        "req-2",
        "wrong",
    ),
    ("a new model", replace(FIRST, model=ModelTuple("nano", "r2")), "req-2", "wrong"),
    (
        "at most 4 tokens wanted",
        replace(FIRST, decoding=Decoding(temperature=0.0, max_tokens=4)),
        "req-2",
        "wrong",
    ),
    ("the policy has changed", replace(FIRST, policy_version="v2"), "req-2", "wrong"),
    ("an answer in German wanted", replace(FIRST, locale="de"), "req-2", "wrong"),
)
FIELDS = (
    *("question", "tenant", "roles", "history", "model", "decoding", "policy version"),
    *("locale", "user", "request id", "Unicode NFC", "lower case"),
)
"""What can be put into the key of the explorer; the last two are ways to write the text."""
SAFE = frozenset(FIELDS[:8]) | {"Unicode NFC"}
NOTES = {
    "user": "Colleagues share this class of answer; with the user in the key none of them does.",
    "request id": "Every request has another one, so nothing is ever found again.",
    "lower case": "It merges questions that mean different things.",
}


def _key(query: Query, request_id: str, chosen: Collection[str]) -> str:
    texts = [message.content for message in query.messages]
    if "Unicode NFC" in chosen:
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    if "lower case" in chosen:
        texts = [text.lower() for text in texts]
    form: Mapping[str, Any] = {
        "question": texts[-1],
        "tenant": query.identity.tenant,
        "roles": sorted(query.identity.roles),
        "user": query.identity.subject,
        "history": texts[:-1],
        "model": asdict(query.model),
        "decoding": asdict(query.decoding),
        "policy version": query.policy_version,
        "locale": query.locale,
        "request id": request_id,
    }
    kept = {name: value for name, value in form.items() if name in chosen}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def outcomes(chosen: Collection[str] = SAFE) -> list[tuple[str, str]]:
    """(how the second request differs, what becomes of it) with a key of the `chosen` fields."""
    first = _key(FIRST, "req-1", chosen)
    rows = []
    for name, query, request_id, if_shared in SECOND:
        is_found = _key(query, request_id, chosen) == first
        if_apart = "needless" if if_shared == "hit" else "miss"
        rows.append((name, if_shared if is_found else if_apart))
    return rows


def key_picture(chosen: Collection[str] = SAFE) -> Picture:
    """The explorer's picture for a key of these fields."""
    rows = outcomes(chosen)
    wrong = sum(outcome in ("leak", "wrong") for _, outcome in rows)
    needless = sum(outcome == "needless" for _, outcome in rows)
    verdict = f"wrong answers: {wrong}, needless misses: {needless}"
    return key_outcomes(rows, f"A key of {len(chosen)} things: {verdict}")


def key_explorer() -> Any:
    """Put things into the key, or leave them out; without ipywidgets, the safe key's picture."""
    try:
        import ipywidgets as w
    except ImportError:
        return key_picture()
    layout = w.Layout(width="auto", margin="0 1.2em 0 0")
    boxes = {
        name: w.Checkbox(value=name in SAFE, description=name, indent=False, layout=layout)
        for name in FIELDS
    }

    def draw(**values: bool) -> str:
        chosen = [name for name in FIELDS if values[name]]
        notes = "".join(f"<li>{escape(NOTES[n])}</li>" for n in chosen if n in NOTES)
        return f"<ul>{notes}</ul>{key_picture(chosen).html()}"

    return interactive(boxes, draw, key_picture(), columns=6)


Curve = Sequence[tuple[float, float, float]]


def false_hit_picture(gates: Mapping[str, Curve], chosen: float = 0.6) -> Picture:
    """`plots.false_hits` with the threshold `chosen` marked on every line."""
    return false_hits(gates, chosen, f"Threshold {chosen:g}")


def false_hit_explorer(gates: Mapping[str, Curve]) -> Any:
    """Move the threshold along the curves of `plots.false_hits`; without ipywidgets, one of it."""
    still = false_hit_picture(gates)
    try:
        import ipywidgets as w
    except ImportError:
        return still
    leasts = [least for least, _, _ in next(iter(gates.values()))]
    slider = w.SelectionSlider(
        options=leasts,
        value=0.6 if 0.6 in leasts else leasts[0],
        description="least cosine of a hit",
        style={"description_width": "12em"},
        layout=w.Layout(width="38em"),
        continuous_update=False,
    )
    draw = partial(false_hit_picture, gates)
    return interactive({"chosen": slider}, lambda chosen: draw(chosen).html(), still)
