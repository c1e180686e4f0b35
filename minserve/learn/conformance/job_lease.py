"""The rules of `job_lease`: claim, renew, complete and fail, each under a fencing token."""

from __future__ import annotations

from typing import Any

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, showing


class _Tried:
    """A queue of the learner's, every call written down with its answer."""

    def __init__(self, part: Any, max_attempts: int = 3, jobs: str = "a") -> None:
        self.queue = part(lease_s=10.0, max_attempts=max_attempts)
        self.lines = [f"q = JobLease(lease_s=10, max_attempts={max_attempts})"]
        for job_id in jobs:
            self.call("enqueue", job_id)

    def call(self, name: str, *arguments: Any) -> Any:
        given = ", ".join(repr(argument) for argument in arguments)
        self.lines.append(f"q.{name}({given})")
        with showing(self.lines):
            answer = getattr(self.queue, name)(*arguments)
        self.lines[-1] += "" if name == "enqueue" else f"   # -> {answer!r}"
        return answer

    def claim(self, now_s: float, why: str = "a job can be claimed") -> tuple[str, int]:
        answer = self.call("claim", now_s)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            self.fail(f"{why}; (id, token) is wanted, this is {answer!r}")
        return answer

    def want(self, answer: Any, wanted: Any, why: str) -> None:
        if answer != wanted:
            self.fail(f"{why}; {wanted!r} is wanted, this is {answer!r}")

    def state(self, job_id: str, wanted: str, why: str) -> None:
        found = self.queue.jobs[job_id].state
        if found != wanted:
            self.fail(f"{why}; the job is to be {wanted!r}, it is {found!r}")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.lines)


def _one_holder(part: Any) -> None:
    t = _Tried(part)
    t.claim(0)
    t.want(t.call("claim", 9), None, "the only job is leased until 10")


def _in_order(part: Any) -> None:
    t = _Tried(part, jobs="ab")
    t.want((t.claim(0)[0], t.claim(0)[0]), ("a", "b"), "the first to arrive is claimed first")


def _lost_lease_returns(part: Any) -> None:
    t = _Tried(part)
    t.claim(0)
    t.claim(10, "the lease ran out at 10: the worker is taken for dead")


def _fresh_token(part: Any) -> None:
    t = _Tried(part)
    tokens = [t.claim(now_s)[1] for now_s in (0, 10, 20)]
    if sorted(set(tokens)) != tokens:
        t.fail(f"each claim needs a larger token than the last; these are {tokens}")


def _counted_at_claim(part: Any) -> None:
    t = _Tried(part, max_attempts=2)
    t.claim(0)
    t.claim(10)
    t.want(t.call("claim", 20), None, "the job has killed 2 workers of at most 2")
    t.state("a", "dead", "nobody was left to report the failures")


def _renewed_lease_holds(part: Any) -> None:
    t = _Tried(part)
    job_id, token = t.claim(0)
    t.want(t.call("renew", job_id, token, 8), True, "the holder renews in time")
    t.want(t.call("claim", 17), None, "renewed at 8, the lease holds until 18")


def _renewal_starts_now(part: Any) -> None:
    t = _Tried(part)
    job_id, token = t.claim(0)
    t.call("renew", job_id, token, 1)
    t.claim(11, "renewed at 1, the lease ended at 11: it counts from now")


def _zombie(part: Any, name: str, *more: Any) -> None:
    t = _Tried(part)
    job_id, old = t.claim(0)
    _, new = t.claim(10)
    t.want(t.call(name, job_id, old, *more), False, f"token {old} is old, {new} holds the job")
    t.state("a", "running", "an old token changes nothing")
    t.want(t.call("claim", 19), None, "the new holder's lease is not touched either")
    t.want(t.call("complete", job_id, new, "new"), True, "the new holder is not disturbed")


def _completes_once(part: Any) -> None:
    t = _Tried(part)
    job_id, token = t.claim(0)
    t.want(t.call("complete", job_id, token, "first"), True, "the holder completes")
    t.state("a", "done", "the holder has completed it")
    t.want(t.call("complete", job_id, token, "second"), False, "it is done already")
    t.want(t.queue.jobs["a"].result, "first", "a result is written once")
    t.want(t.call("claim", 99), None, "a job that is done is not delivered again")


def _fails_and_returns(part: Any) -> None:
    t = _Tried(part, max_attempts=2)
    job_id, token = t.claim(0)
    t.want(t.call("fail", job_id, token), True, "the holder says that it failed")
    t.claim(1, "one attempt is left, and nobody holds the job")


def _budget_ends(part: Any) -> None:
    t = _Tried(part, max_attempts=1)
    job_id, token = t.claim(0)
    t.call("fail", job_id, token)
    t.state("a", "dead", "its only attempt has failed")


STEPS = ("claim", "renew", "complete", "fail")
_TOKEN_HINT = "Act only if the job is running and its latest token is the caller's."
RULES = (
    Rule("one_holder", "claim", "A leased job is claimed by nobody else.",
         "Look at the state, and mark the job as running.", _one_holder),
    Rule("in_order", "claim", "The first to arrive is claimed first.",
         "`self.jobs` keeps the order of arrival.", _in_order),
    Rule("lost_lease_returns", "claim", "A job whose lease has run out can be claimed again.",
         "Before you look for a queued job, end the attempts whose lease_until_s has come.",
         _lost_lease_returns),
    Rule("fresh_token", "claim", "Every claim gets a token that no earlier claim had.",
         "Add 1 to the record's token at each claim, and never take it back.", _fresh_token),
    Rule("counted_at_claim", "claim", "A job that kills its worker each time is dead in the end.",
         "Count the attempt when it is claimed: a killed worker reports nothing.",
         _counted_at_claim),
    Rule("renewed_lease_holds", "renew", "A renewed lease is not claimed by another.",
         "Move lease_until_s.", _renewed_lease_holds),
    Rule("renewal_starts_now", "renew", "A renewal counts from now, not from the old end.",
         "now_s + self.lease_s", _renewal_starts_now),
    Rule("zombie_cannot_renew", "renew", "An old token renews nothing.", _TOKEN_HINT,
         lambda part: _zombie(part, "renew", 15)),
    Rule("completes_once", "complete", "A result is written once.", _TOKEN_HINT, _completes_once),
    Rule("zombie_cannot_complete", "complete", "An old token completes nothing.", _TOKEN_HINT,
         lambda part: _zombie(part, "complete", "old")),
    Rule("fails_and_returns", "fail", "A failed attempt gives the job back at once.",
         "Set the state back to queued.", _fails_and_returns),
    Rule("budget_ends", "fail", "After max_attempts the job is dead.",
         "Compare attempts with max_attempts when an attempt ends.", _budget_ends),
    Rule("zombie_cannot_fail", "fail", "An old token fails nothing.", _TOKEN_HINT,
         lambda part: _zombie(part, "fail")),
)  # fmt: skip

_DRAWING = """\
worker 1   claim, token 1 |--- lease ---|   (asleep)        complete(token 1)  refused
worker 2                                 claim, token 2 |--------| complete(token 2)  done"""
_HELD = "job = self.jobs[job_id]; unless it is running and job.token == token: return False\n"

SUITE = Suite(
    "job_lease",
    STEPS,
    RULES,
    {
        step: Ladder(_DRAWING, pseudocode, near_miss)
        for step, pseudocode, near_miss in (
            ("claim", "end the attempts whose lease has run out (dead, or queued again)\n"
             "take the first queued job: running, attempts + 1, token + 1, lease until now + lease",
             "- if job.state == QUEUED:          # a lost lease stays running for ever\n"
             "+ if job.state == RUNNING and job.lease_until_s <= now_s: end the attempt first"),
            ("renew", _HELD + "the lease ends lease_s from now; return True",
             "- job.lease_until_s += self.lease_s      # early renewals add up\n"
             "+ job.lease_until_s = now_s + self.lease_s"),
            ("complete", _HELD + "done, with this result; return True",
             "- if job.state == RUNNING:               # so may anybody's zombie\n"
             "+ if job.state == RUNNING and job.token == token:"),
            ("fail", _HELD + "dead if attempts have reached max_attempts, else queued; return True",
             "- job.state = QUEUED                     # for ever\n"
             "+ job.state = DEAD if job.attempts >= self.max_attempts else QUEUED"),
        )
    },
)  # fmt: skip
