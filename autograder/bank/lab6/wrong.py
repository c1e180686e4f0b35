"""Lab 6's wrong and partial fixes: each one an edit of the solution, with its score."""

from __future__ import annotations

from autograder.bank.lab6 import (
    BANK,
    KEY,
    REGRESSION_ONLY,
    edited,
    row,
    solved_but,
)

# Pieces of the solution that the edits below replace.
INIT = "        self.max_attempts = max_attempts\n"
SAME = 'return known["job"] if known["body"] == body else None\n'
ACCEPT = '        self.store.commit([["keys", key, known], ["jobs", job_id, job]])\n'
FREE = '            if self.state_of(job, now_s) == "queued":\n'
RUN = 'job |= {"state": "running", "attempts": job["attempts"] + 1}\n'
TOKEN = '{"token": job["token"] + 1, "until_s"'
NUMBER = '"attempt": job["attempts"]}'
LAPSED = "            return self.after_attempt(job)\n"
AT_WORK = '        if job["state"] == "running" and now_s >= job["until_s"]:\n'
BURY = 'job["attempts"] >= self.max_attempts'
HELD = 'job["token"] != token or self.state_of(job, now_s) != "running"'
RENEW = '        job["until_s"] = now_s + self.lease_s\n'
REPEAT = 'job is not None and job["state"] == "done" and job["token"] == token'
PAY = '        self.store.commit([*writes, ["jobs", job_id, job]])\n'
FAILED = '"reason": reason}\n'
TOLD = '"result": job["result"]}'
BURIED = 'if self.state_of(job, now_s) == "dead"]'
CAN_REDRIVE = 'if job is None or self.state_of(job, now_s) != "dead":\n'
REDRIVE = 'job |= {"state": "queued", "attempts": 0}'
PAY_ONLY = "        self.store.commit(writes)\n"
NOTE_ONLY = '        self.store.commit([["jobs", job_id, job]])\n'


# -- the fixes


ONCE = [
    row(
        "wrong: pays first, and notes it then",
        lambda: edited((PAY, PAY_ONLY + NOTE_ONLY)),
        (0, 3, 4, 3, 3, 1),
        contains="a job that was not done",
        through_nbgrader=True,
    ),
    row(
        "wrong: pays each attempt, and notes it then",
        lambda: edited((PAY, PAY_ONLY + NOTE_ONLY), (KEY, 'f"{job_id} {token} {name}"')),
        (0, 3, 4, 3, 3, 1),
        contains="more was paid than was due",
    ),
    row(
        "wrong: pays as soon as the job is accepted",
        lambda: edited(
            (
                ACCEPT,
                '        self.store.commit([["keys", key, known], ["jobs", job_id, job],'
                ' ["ledger", key, body]])\n',
            )
        ),
        (0, 3, 4, 3, 3, 1),
        contains="more was paid than was due",
    ),
    row(
        "wrong: the job first, and its key then",
        lambda: edited((ACCEPT, NOTE_ONLY + '        self.store.commit([["keys", key, known]])\n')),
        (0, 3, 4, 3, 3, 1),
        contains="killed after a commit of submit",
    ),
    row(
        "wrong: a completion said again is refused",
        lambda: edited((REPEAT, "False")),
        (0, 3, 4, 3, 3, 1),
        contains="its answer was lost",
    ),
    row(
        "wrong: the order of a body's fields counts",
        lambda: edited(
            (SAME, SAME.replace('known["body"] == body', 'str(known["body"]) == str(body)'))
        ),
        (0, 3, 4, 3, 3, 1),
        contains="in another order",
    ),
    row(
        "wrong: the result is not told",
        lambda: edited((TOLD, '"result": None}')),
        (2, 3, 4, 3, 3, 1),
        contains="worked before",
    ),
]

ACCEPTED = [
    row(
        "wrong: notes it first, and pays then",
        lambda: edited((PAY, NOTE_ONLY + PAY_ONLY)),
        (4, 0, 4, 3, 3, 1),
        contains="were missing in the ledger",
        through_nbgrader=True,
    ),
    row(
        "wrong: one ledger key for an account",
        lambda: edited((KEY, "f\"{each['to']} {name}\"")),
        (4, 0, 4, 3, 3, 1),
        contains="were missing in the ledger",
    ),
    row(
        "wrong: one ledger key for all payments of a job",
        lambda: edited((KEY, "job_id")),
        (0, 0, 4, 3, 3, 1),
        contains="were missing in the ledger",
    ),
    row(
        "wrong: the key first, and its job then",
        lambda: edited((ACCEPT, '        self.store.commit([["keys", key, known]])\n' + NOTE_ONLY)),
        (4, 0, 4, 3, 3, 1),
        contains="was never done",
    ),
    row(
        "wrong: a key is free again when its job is done",
        lambda: edited((PAY, PAY.replace("[*writes,", '[*writes, ["keys", job["key"], None],'))),
        (0, 0, 4, 3, 3, 1),
        contains="when it was done",
    ),
    row(
        "wrong: any body is accepted",
        lambda: edited((SAME, 'return known["job"]\n')),
        (4, 0, 4, 3, 3, 1),
        contains="another body",
    ),
    row(
        "wrong: of the body only the sum is compared",
        lambda: edited(
            (SAME, SAME.replace('["body"] == body', '["body"]["cents"] == body["cents"]'))
        ),
        (4, 0, 4, 3, 3, 1),
        contains="another body",
    ),
    row(
        "wrong: done when claimed",
        lambda: edited((RUN, RUN.replace("running", "done"))),
        (0, 0, 0, 0, 3, 1),
        contains="was never done",
    ),
    row(
        "wrong: whoever dies has done it",
        lambda: edited((LAPSED, '            return "done"\n')),
        (4, 0, 0, 0, 3, 1),
        contains="were missing in the ledger",
    ),
    row(
        "wrong: a lease never ends",
        lambda: edited((LAPSED, '            return "running"\n')),
        (4, 0, 0, 0, 3, 1),
        contains="when its lease was over",
    ),
]

LEASE = [
    row(
        "wrong: renewals are noted and not read",
        lambda: edited((RENEW, '        job["renewed_s"] = now_s\n')),
        (4, 3, 0, 3, 3, 1),
        contains="a second worker",
        through_nbgrader=True,
    ),
    row(
        "wrong: renewals add up",
        lambda: edited((RENEW, '        job["until_s"] += self.lease_s\n')),
        (4, 3, 0, 3, 3, 1),
        contains="when its lease was over",
    ),
    row(
        "wrong: renewals live in memory",
        lambda: edited(
            (INIT, INIT + "        self.ends = {}\n"),
            (RENEW, "        self.ends[job_id] = now_s + self.lease_s\n        return True\n"),
            (AT_WORK, AT_WORK.replace('job["until_s"]', "self.end_of(job)")),
            (
                "    def after_attempt(self",
                "    def end_of(self, job):\n"
                '        return max(job["until_s"], self.ends.get(job["id"], 0))\n\n'
                "    def after_attempt(self",
            ),
            ('"attempts": 0, "token": 0,', '"id": job_id, "attempts": 0, "token": 0,'),
        ),
        (4, 3, 0, 3, 3, 1),
        contains="a second worker",
    ),
    row(
        "wrong: no fence at all",
        lambda: edited((HELD, "False")),
        (4, 3, 0, 3, 3, 1),
        contains="did not hold the job",
    ),
    row(
        "wrong: any token, within the lease",
        lambda: edited((HELD, 'self.state_of(job, now_s) != "running"')),
        (4, 3, 0, 3, 3, 1),
        contains="another worker has the job",
    ),
    row(
        "wrong: the token, at any time",
        lambda: edited((HELD, 'job["token"] != token or job["state"] != "running"')),
        (4, 3, 0, 3, 3, 1),
        contains="nobody has the job yet",
    ),
    row(
        "wrong: older tokens count as well",
        lambda: edited((HELD, HELD.replace("!= token", "< token"))),
        (4, 3, 0, 3, 3, 1),
        contains="another worker has the job",
    ),
    row(
        "wrong: one token for all",
        lambda: edited((TOKEN, '{"token": 1, "until_s"')),
        (4, 3, 0, 3, 3, 1),
        contains="did not hold the job",
    ),
    row(
        "wrong: tokens start again with the process",
        lambda: edited(
            (INIT, INIT + "        self.last = 0\n"),
            (FREE, FREE + "                self.last += 1\n"),
            (TOKEN, '{"token": self.last, "until_s"'),
        ),
        (4, 3, 0, 3, 3, 1),
        contains="did not hold the job",
    ),
    row(
        "wrong: tokens start again with a redrive",
        lambda: edited((REDRIVE, REDRIVE.replace("0}", '0, "token": 0}'))),
        (4, 3, 0, 3, 3, 1),
        contains="redriven since",
    ),
    row(
        "wrong: whoever says that it is done is believed",
        lambda: edited((REPEAT, 'job is not None and job["state"] == "done"')),
        (4, 3, 0, 3, 3, 1),
        contains="another worker has completed",
    ),
]

POISON = [
    row(
        "wrong: only failures count",
        lambda: edited(
            (RUN, 'job |= {"state": "running"}\n'),
            (FAILED, FAILED.replace("}", ', "attempts": job["attempts"] + 1}')),
        ),
        (4, 3, 4, 0, 3, 1),
        contains="after `max_attempts` attempts",
        through_nbgrader=True,
    ),
    row(
        "wrong: attempts are counted in memory",
        lambda: edited(
            (INIT, INIT + "        self.tries = {}\n"),
            (FREE, FREE + "                self.tries[job_id] = self.tries.get(job_id, 0) + 1\n"),
            (RUN, 'job |= {"state": "running", "attempts": self.tries[job_id]}\n'),
        ),
        (4, 3, 4, 0, 3, 1),
        contains="crash of the machine",
    ),
    row(
        "wrong: whose worker is lost is queued for ever",
        lambda: edited((LAPSED, '            return "queued"\n')),
        (4, 3, 4, 0, 3, 1),
        contains="after `max_attempts` attempts",
    ),
    row(
        "wrong: dead jobs are handed out",
        lambda: edited((FREE, FREE.replace('== "queued"', 'in ("queued", "dead")'))),
        (4, 3, 4, 0, 3, 1),
        contains="after `max_attempts` attempts",
    ),
    row(
        "wrong: dead while the last attempt is at work",
        lambda: edited(
            (
                AT_WORK,
                AT_WORK.replace('now_s >= job["until_s"]', f'(now_s >= job["until_s"] or {BURY})'),
            )
        ),
        (4, 3, 4, 0, 3, 1),
        contains="was still at work",
    ),
    row(
        "wrong: one attempt too many",
        lambda: edited((BURY, BURY.replace(">=", ">"))),
        (4, 3, 4, 0, 3, 1),
        contains="after `max_attempts` attempts",
    ),
    row(
        "wrong: one attempt too few",
        lambda: edited((BURY, BURY + " - 1")),
        (4, 3, 4, 0, 3, 1),
        contains="had an attempt left",
    ),
    row(
        "wrong: attempts are told from 0 on",
        lambda: edited((NUMBER, NUMBER.replace("]}", "] - 1}"))),
        (4, 3, 4, 0, 3, 1),
        contains="which attempt it is",
    ),
    row(
        "wrong: the list has only the jobs that failed",
        lambda: edited((BURIED, 'if job["state"] == "dead"]')),
        (4, 3, 4, 0, 3, 1),
        contains="did not list",
    ),
    row(
        "wrong: a redrive gives no attempts",
        lambda: edited((REDRIVE, 'job |= {"state": "queued"}')),
        (4, 3, 4, 0, 3, 1),
        contains="fresh attempts",
    ),
    row(
        "wrong: any job can be redriven",
        lambda: edited((CAN_REDRIVE, "if job is None:\n")),
        (4, 3, 4, 0, 3, 1),
        contains="of a job that is queued",
    ),
]

WRONG = [
    *ONCE,
    *ACCEPTED,
    *LEASE,
    *POISON,
    row(
        "wrong: tokens are texts",
        lambda: edited(
            ('"token": job["token"], "attempt"', '"token": str(job["token"]), "attempt"'),
            (HELD, HELD.replace('job["token"] != token', 'str(job["token"]) != str(token)')),
            (REPEAT, REPEAT.replace('job["token"] == token', 'str(job["token"]) == str(token)')),
        ),
        REGRESSION_ONLY,
        contains="a whole number",
    ),
    row(
        "wrong: the queue is closed",
        lambda: edited((FREE, "            if False:\n")),
        (0, 0, 0, 0, 3, 1),
        contains="got nothing",
    ),
    row(
        "partial: right queue, untouched test",
        lambda: solved_but("lab6-regression"),
        (4, 3, 4, 3, 0, 1),
    ),
    row(
        "partial: untouched queue, right test",
        lambda: solved_but("lab6-queue"),
        REGRESSION_ONLY,
        through_nbgrader=True,
    ),
    row(
        "partial: a test of dead workers alone",
        lambda: solved_but(
            "lab6-regression",
            "def test_delivery(make_queue):\n"
            "    queue, store = make_queue(10, 3)\n"
            "    job = queue.submit('a', refund(), 0)\n"
            "    queue.claim('one', 0)\n"
            "    assert queue.claim('two', 10) is not None",
        ),
        (4, 3, 4, 3, 1, 1),
        contains="another's by now",
    ),
    row(
        "partial: a test of crashes alone",
        lambda: solved_but(
            "lab6-regression",
            "def test_delivery(make_queue):\n"
            "    queue, store = make_queue(10, 3)\n"
            "    job = queue.submit('a', refund(), 0)\n"
            "    claim = queue.claim('one', 0)\n"
            "    store.kill_at_commit(1)\n"
            "    with contextlib.suppress(ConnectionAbortedError):\n"
            "        queue.complete(job, claim['token'], 'ok', due(refund()), 1)\n"
            "    queue.restart()\n"
            "    assert len(store.paid()) == 2 and queue.status(job, 2)['state'] == 'done'",
        ),
        (4, 3, 4, 3, 1, 1),
        contains="whose worker has died",
    ),
    row(
        "partial: a test that asks what nobody promised",
        lambda: solved_but(
            "lab6-regression",
            BANK.solution("lab6-regression") + "\n    assert job == 'job-1', 'the first'\n",
        ),
        (4, 3, 4, 3, 0, 1),
        contains="correct implementation",
    ),
    row(
        "partial: right queue, untouched bonus",
        lambda: solved_but("lab6-bonus"),
        (4, 3, 4, 3, 3, 0),
        contains="another time",
    ),
    row(
        "partial: a bonus whose retries return all at once",
        lambda: solved_but(
            "lab6-bonus",
            BANK.solution("lab6-bonus").replace("(told_s or 0.0) + draw", "told_s or draw"),
        ),
        (4, 3, 4, 3, 3, 0),
        contains="another time",
    ),
    row(
        "partial: a bonus that overflows",
        lambda: solved_but(
            "lab6-bonus",
            BANK.solution("lab6-bonus").replace("min(attempt - 1, 1000)", "attempt - 1"),
        ),
        (4, 3, 4, 3, 3, 0),
        contains="OverflowError",
    ),
]
