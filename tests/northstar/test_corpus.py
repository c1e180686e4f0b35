"""The Northstar corpus keeps its promises. No torch."""

import hashlib
import json
import random
import re
import shutil
import sys

import pytest

from minserve.errors import DataNotFound
from minserve.northstar import prompts
from minserve.northstar.corpus import VERSIONS, CorpusError, load_corpus, load_demo_keys
from minserve.northstar.paths import data_dir
from minserve.northstar.questions import (
    is_correct,
    is_qualified,
    load_questions,
    prompt_of,
    share_of_values,
)

QUESTIONS = load_questions()
CORPORA = {version: load_corpus(version) for version in VERSIONS}


@pytest.fixture(scope="module")
def tasks():
    """The training generator, which lies beside the model and not in the package."""
    folder = str(data_dir("models"))
    sys.path.insert(0, folder)
    try:
        import northstar_tasks

        return northstar_tasks
    finally:
        sys.path.remove(folder)


def kinds(kind):
    return [q for q in QUESTIONS if q.kind == kind]


def test_there_are_enough_questions_of_each_kind():
    counts = {kind: len(kinds(kind)) for kind in ("policy", "account", "chat", "report")}
    assert counts["policy"] >= 120 and counts["account"] >= 60
    assert counts["chat"] >= 30 and counts["report"] >= 20
    assert len({q.id for q in QUESTIONS}) == len(QUESTIONS)


def test_every_answer_stands_in_its_evidence_and_in_no_other_line():
    for version, corpus in CORPORA.items():
        for q in QUESTIONS:
            lines = corpus.lines(q.evidence)
            for fact in q.facts:
                assert lines.count(corpus.facts[fact].text) == 1
            for value in q.values[version]:
                assert sum(line.endswith(f" is {value}.") for line in lines) == 1


def test_evidence_has_distractors_and_stays_within_what_training_covers():
    for q in QUESTIONS:
        assert len(q.facts) < len(q.evidence) <= 14


def test_evidence_never_crosses_a_tenant_or_a_user():
    facts = CORPORA["v1"].facts
    for q in QUESTIONS:
        for fact in (facts[i] for i in q.evidence):
            assert fact.tenant == q.tenant
            assert fact.user in (None, q.user)


def test_a_chat_without_its_evidence_does_not_give_the_answer_away():
    for version, corpus in CORPORA.items():
        for q in kinds("chat"):
            assert q.history
            prompt = prompt_of(q, corpus, with_evidence=False)
            assert not any(value in prompt for value in q.values[version])


def test_versions_differ_in_at_least_a_third_of_the_policies():
    one, two = (CORPORA[v].facts for v in VERSIONS)
    assert one.keys() == two.keys()
    policies = [i for i, fact in one.items() if fact.user is None]
    changed = [i for i in policies if one[i].value != two[i].value]
    assert len(policies) / 3 <= len(changed) < len(policies)
    assert all(one[i] == two[i] for i, fact in one.items() if fact.user)


def test_same_words_from_two_users_have_different_answers():
    by_text = {}
    for q in kinds("account"):
        by_text.setdefault(q.text, set()).add(q.expected["v1"])
    assert max(len(answers) for answers in by_text.values()) > 3


def test_same_words_in_two_tenants_have_different_answers():
    by_text = {}
    for q in kinds("policy"):
        by_text.setdefault(q.text, set()).add(q.expected["v1"])
    assert any(len(answers) > 1 for answers in by_text.values())


def test_shipped_names_and_values_are_held_out(tasks):
    for corpus in CORPORA.values():
        for fact in corpus.facts.values():
            assert tasks.is_held_out(fact.value), fact
            if fact.entity:
                assert tasks.is_held_out(fact.entity.split()[0]), fact
        assert all(tasks.is_held_out(user.name.split()[0]) for user in corpus.users)


def test_training_never_emits_a_shipped_name_or_a_held_out_value(tasks):
    words = {f.entity.split()[0] for f in CORPORA["v1"].facts.values() if f.entity}
    words |= {user.name.split()[0] for user in CORPORA["v1"].users}
    rng = random.Random(5)
    for _ in range(400):
        sample = tasks.make_sample(rng, (2, 14), (1, 4), system=0.5, follow=0.3, report=0.2)
        text = "".join(text for text, _ in sample)
        assert not words & set(re.findall(r"\w+", text))
    for _ in range(3000):
        assert not tasks.is_held_out(tasks.make_entity(rng))
        assert not tasks.is_held_out(tasks.make_word(rng))
        assert not tasks.is_held_out(tasks.make_value(rng, rng.choice(tasks.KINDS)))


def test_only_hashes_of_keys_are_stored_and_each_opens_its_user():
    corpus, keys = CORPORA["v1"], load_demo_keys()
    stored = (data_dir() / "tenants.json").read_text("utf-8")
    assert {u.id for u in corpus.users} == set(keys)
    for user in corpus.users:
        assert user.key_sha256 == hashlib.sha256(keys[user.id].encode()).hexdigest()
        assert keys[user.id] not in stored
    assert len(corpus.tenants) == 3


def test_prompt_extends_the_turn_before_it_word_for_word():
    corpus = CORPORA["v2"]
    for q in kinds("chat"):
        assert prompt_of(q, corpus).startswith(prompt_of(q.history[-1], corpus))


def test_prompt_equals_its_messages_joined():
    arguments = ("S", ["a", "b"], "Q?", [("u", "a")])
    joined = "".join(
        f"<|{m['role']}|>{m['content']}<|end|>" for m in prompts.as_messages(*arguments)
    )
    assert prompts.render_prompt(*arguments) == joined + "<|assistant|>"


def test_correct_means_the_sentence_or_the_value_and_nothing_else():
    q = next(q for q in kinds("policy") if q.expected["v1"] != q.expected["v2"])
    assert is_correct(q, q.expected["v1"], "v1")
    assert is_correct(q, "  " + q.values["v1"][0].upper() + ". <|end|>", "v1")
    assert not is_correct(q, q.expected["v1"], "v2")
    assert not is_correct(q, q.expected["v1"] + " Really.", "v1")
    assert not is_correct(q, "", "v1")
    with pytest.raises(CorpusError):
        is_correct(q, "", "v3")


def test_report_is_scored_by_the_share_of_its_values():
    q = kinds("report")[0]
    sentences = q.expected["v1"].split(". ")
    assert share_of_values(q, q.expected["v1"], "v1") == 1.0
    assert share_of_values(q, ". ".join(reversed(sentences)), "v1") == 1.0
    part = ". ".join(sentences[:-1])
    assert share_of_values(q, part, "v1") == pytest.approx(1 - 1 / len(sentences))
    assert not is_qualified(q, part, "v1") and not is_qualified(q, "", "v1")


def copy_of_data(tmp_path):
    return shutil.copytree(data_dir(), tmp_path / "northstar")


def test_unknown_version_and_unknown_fact_say_so():
    with pytest.raises(CorpusError, match="v9"):
        load_corpus("v9")
    with pytest.raises(CorpusError, match="nothing"):
        CORPORA["v1"].lines(["nothing"])


@pytest.mark.parametrize(
    "name", ["tenants.json", "policies_v1.json", "accounts.json", "system_prompt.txt"]
)
def test_missing_file_is_named(tmp_path, name):
    folder = copy_of_data(tmp_path)
    (folder / name).unlink()
    with pytest.raises(DataNotFound, match=name):
        load_corpus("v1", folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"facts": [{"id": "x"}]}', '{"facts": 3}'])
def test_malformed_file_is_named(tmp_path, content):
    folder = copy_of_data(tmp_path)
    (folder / "accounts.json").write_text(content, "utf-8")
    with pytest.raises(CorpusError, match="accounts.json"):
        load_corpus("v1", folder)


def test_question_about_an_unknown_fact_is_refused(tmp_path):
    folder = copy_of_data(tmp_path)
    questions = json.loads((folder / "questions.json").read_text("utf-8"))
    questions["questions"][0]["facts"] = ["ghost"]
    (folder / "questions.json").write_text(json.dumps(questions), "utf-8")
    with pytest.raises(CorpusError, match="ghost"):
        load_questions(folder)
