"""What a policy may not decide. A learner's policy is checked before anything is changed."""

from __future__ import annotations

from numbers import Integral

from minserve.errors import ConfigError
from minserve.scheduling.batching import Decision, Snapshot


def check_decision(decision: Decision, snapshot: Snapshot) -> None:
    """Raises `ConfigError` if the policy decided nonsense; nothing has been changed yet."""
    if not isinstance(decision, Decision):
        raise ConfigError(f"the policy decided {decision!r}", "return a Decision")
    shown = {id(request) for request in (*snapshot.running, *snapshot.waiting)}
    seen: set[int] = set()
    for item in decision.run:
        try:
            request, num_tokens = item
        except (TypeError, ValueError):
            hint = "run (request, num_tokens) pairs"
            raise ConfigError(f"the policy runs {item!r}", hint) from None
        if id(request) not in shown or id(request) in seen:
            raise ConfigError(
                f"the policy runs {getattr(request, 'id', request)!r}, which it was not shown "
                "or has listed twice",
                "run each request of the snapshot at most once",
            )
        if not isinstance(num_tokens, Integral) or num_tokens < 1:
            raise ConfigError(
                f"the policy gives {request.id!r} {num_tokens!r} tokens", "give 1 or more"
            )
        seen.add(id(request))
    for victim in decision.victims:
        if id(victim) not in shown:
            raise ConfigError(
                f"the policy preempts {getattr(victim, 'id', victim)!r}, which it was not shown"
            )
    wake_at_s, now_s = decision.wake_at_s, snapshot.now_s
    if wake_at_s is not None and not decision.run and not now_s < wake_at_s < float("inf"):
        raise ConfigError(
            f"the policy wants to be asked again at {wake_at_s} s, and it is {now_s} s",
            "give a time that is still to come",
        )
