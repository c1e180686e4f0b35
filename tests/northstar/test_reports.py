"""Document reports as jobs: what a handler writes, and what a second attempt need not write."""

from __future__ import annotations

import pytest
from live_server import Live

from minserve.cli.engines import ServerGenerate, connect
from minserve.jobs.job import Job, JobFailed, State
from minserve.jobs.kinds import REPORT
from minserve.northstar import reports
from minserve.northstar.questions import load_questions
from minserve.request import Identity

QUESTIONS = [q for q in load_questions() if q.tenant == "kestrel" and q.user is None][:3]
KESTREL = Identity("kestrel", "someone")


class Asked:
    """What a worker gives a handler, without a worker."""

    def __init__(self, identity=KESTREL, recorded=(), answer="so it is") -> None:
        self.job = Job("j", identity, REPORT.name, State.RUNNING, None)
        self.tools, self.ledger, self.told = self, dict(recorded), []
        self.prompts: list[str] = []
        self.answer = answer

    def text(self, prompt, identity, max_tokens):
        assert identity == self.job.identity
        self.prompts.append(prompt)
        return self.answer

    def chat(self, body, identity):
        return {"echo": body, "for": identity.tenant}

    def progress(self, completed, total):
        self.told.append((completed, total))

    def effect(self, key, value=None):
        self.ledger.setdefault(key, value)

    def effect_now(self, key, value=None):
        return self.ledger.setdefault(key, value)

    def recorded(self):
        return dict(self.ledger)


def order(questions=QUESTIONS):
    return {"questions": [question.id for question in questions], "version": "v1"}


def test_report_has_a_section_for_each_question_and_keeps_its_contract():
    ctx = Asked()
    made = reports.write(order(), ctx)
    REPORT.check_payload(order())
    REPORT.check_result(made)
    assert [s["question"] for s in made["sections"]] == order()["questions"]
    assert made["num_qualified"] == 0, "`so it is` states nothing that was asked for"
    assert ctx.told == [(1, 3), (2, 3), (3, 3)]
    assert set(ctx.ledger) == {"section 0", "section 1", "section 2", "report"}


def test_second_attempt_writes_only_what_the_first_has_not_recorded():
    first = {"question": QUESTIONS[0].id, "text": "as it was", "is_qualified": True}
    ctx = Asked(recorded={"section 0": first})
    made = reports.write(order(), ctx)
    assert len(ctx.prompts) == 2, "a crash costs one section at most"
    assert made["sections"][0] == first and made["num_qualified"] == 1


@pytest.mark.parametrize("who", [Identity("alder", "someone"), Identity("", "")])
def test_question_of_another_or_of_nobody_is_refused_for_good(who):
    for ask, identity in ((order(), who), ({"questions": ["none-such"]}, KESTREL)):
        ctx = Asked(identity)
        with pytest.raises(JobFailed) as refused:
            reports.write(ask, ctx)
        assert refused.value.is_permanent and ctx.prompts == [] and ctx.ledger == {}


def test_chat_job_is_answered_for_its_owner():
    assert reports.complete_chat({"messages": []}, Asked())["for"] == "kestrel"


def test_handler_reaches_a_server_over_http_and_hears_when_to_return():
    with Live() as live:
        tools = connect({"url": live.url, "api_key": None, "model": "none"})
        assert isinstance(tools, ServerGenerate)
        assert tools.text("hello", KESTREL, 4) == "abcd"
        body = {"model": "letters", "messages": [{"role": "user", "content": "hi"}]}
        answer = tools.chat(body | {"max_tokens": 3}, KESTREL)
        assert answer["choices"][0]["message"]["content"] == "abc"
        with pytest.raises(JobFailed) as refused:
            tools.chat(body | {"max_tokens": 0}, KESTREL)
        assert refused.value.is_permanent, "asking again would not help"


def test_server_that_is_gone_fails_the_attempt_and_not_for_good():
    with pytest.raises(JobFailed, match="does not answer") as gone:
        connect({"url": "http://127.0.0.1:9", "model": "none"}).text("hello", KESTREL, 4)
    assert not gone.value.is_permanent
