"""What Northstar's classes of answer are checked by: the evidence that their request brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from minserve.northstar.prompts import split_user
from minserve.northstar.reuse import grounded
from minserve.reuse.key import Message
from minserve.reuse.validation import Check, NamedCheck


def grounded_in(kind: str, messages: Sequence[Message]) -> Check | None:
    """Whether an answer says what the evidence says (`grounded`), for a question of that kind.

    Evidence and question are the last message's, as `render_user` writes them; caches have them as
    two messages. None where there is no evidence to check by.
    """
    if not messages or messages[-1].role != "user":
        return None
    *earlier, last = messages
    apart = "".join(message.content for message in earlier[-1:] if message.role == "evidence")
    evidence, question = split_user(apart + last.content)
    lines = [line.removeprefix("- ") for line in evidence.splitlines() if line.startswith("- ")]
    if not lines:
        return None
    if kind == "chat":  # a follow-up names only what is new
        asked = [split_user(message.content)[1] for message in earlier if message.role == "user"]
        question = " ".join([*asked, question])
    return lambda text: grounded(question, kind, lines, text)


CHECKS: Mapping[str, NamedCheck] = {
    "grounded": partial(grounded_in, "policy"),
    "grounded_chat": partial(grounded_in, "chat"),
    "grounded_report": partial(grounded_in, "report"),
}
"""By the names that the policy table uses."""
