"""Measure northstar-nano on the shipped Northstar questions, with transformers' greedy decoding.

    python data/models/evaluate_northstar_nano.py            # all questions: prints JSON
    python data/models/evaluate_northstar_nano.py --every 5  # a fifth of them, quicker
    python data/models/evaluate_northstar_nano.py --vary     # policy and account, prompts varied

Exact match by kind and corpus version, with the evidence in the prompt and without it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from minserve.northstar.corpus import VERSIONS, Corpus, load_corpus  # noqa: E402
from minserve.northstar.prompts import render_prompt, state  # noqa: E402
from minserve.northstar.questions import (  # noqa: E402
    Question,
    is_correct,
    load_questions,
    prompt_of,
    share_of_values,
)

MODEL = HERE / "northstar-nano"


def load(folder: Path = MODEL):
    """(tokenizer, model in float32) as transformers loads them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return tokenizer, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def generate(tokenizer, model, prompts: list[str], max_new_tokens: int) -> list[str]:
    """Greedy answers, in batches of prompts of like length."""
    import torch

    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers = [""] * len(prompts)
    for at in range(0, len(order), 32):
        batch = order[at : at + 32]
        inputs = tokenizer([prompts[i] for i in batch], return_tensors="pt", padding=True)
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
        for i, row in zip(batch, output[:, inputs["input_ids"].shape[1] :], strict=True):
            answers[i] = tokenizer.decode(row, skip_special_tokens=True)
    return answers


def answer_all(
    tokenizer, model, questions: list[Question], corpus: Corpus, with_evidence: bool
) -> list[str]:
    """The model's answer to each question."""
    answers: dict[str, str] = {}
    for report in (False, True):
        some = [q for q in questions if (q.kind == "report") == report]
        texts = [prompt_of(q, corpus, with_evidence) for q in some]
        limit = 120 if report else 40
        answers |= zip((q.id for q in some), generate(tokenizer, model, texts, limit), strict=True)
    return [answers[q.id] for q in questions]


def evaluate(folder: Path = MODEL, every: int = 1, failures: bool = False) -> dict:
    """Shares of exact answers: ``{"with_evidence": {"v1": {"all": ..., "policy": ...}}, ...}``.

    ``report_values`` is the share of report values stated. ``every`` takes each n-th question.
    With ``failures``, lists what went wrong with the evidence shown.
    """
    tokenizer, model = load(folder)
    questions = load_questions()[::every]
    started = time.monotonic()
    result: dict = {"questions": len(questions), "with_evidence": {}, "without_evidence": {}}
    wrong = []
    for name, shown in (("with_evidence", True), ("without_evidence", False)):
        for version in VERSIONS:
            corpus = load_corpus(version)
            answers = answer_all(tokenizer, model, questions, corpus, shown)
            right = [is_correct(q, a, version) for q, a in zip(questions, answers, strict=True)]
            table = {"all": sum(right) / len(right)}
            for kind in dict.fromkeys(q.kind for q in questions):
                hits = [ok for q, ok in zip(questions, right, strict=True) if q.kind == kind]
                table[kind] = sum(hits) / len(hits)
            shares = [
                share_of_values(q, a, version)
                for q, a in zip(questions, answers, strict=True)
                if q.kind == "report"
            ]
            table["report_values"] = sum(shares) / max(1, len(shares))
            result[name][version] = {k: round(v, 4) for k, v in table.items()}
            if shown:
                wrong += [
                    {"id": q.id, "version": version, "answer": a, "expected": q.expected[version]}
                    for q, a, ok in zip(questions, answers, right, strict=True)
                    if not ok
                ]
    result["seconds"] = round(time.monotonic() - started, 1)
    if failures:
        result["failures"] = wrong
    return result


OTHER_SYSTEM = "Be brief. Use only the facts below. Say so when a fact is missing."


def evaluate_varied(folder: Path = MODEL, every: int = 1, seed: int = 7) -> dict:
    """Shares of exact answers to policy and account questions under v1, prompts varied.

    One variation at a time: another order of the lines, no or another system prompt, the answer's
    line alone, 14 lines (a tenant's others added), other wordings of the lines.
    """
    tokenizer, model = load(folder)
    corpus, rng = load_corpus("v1"), random.Random(seed)
    questions = [q for q in load_questions() if q.kind in ("policy", "account")][::every]
    result = {"questions": len(questions)}

    def lines(q: Question, variation: str) -> list[str]:
        ids = list(q.evidence)
        if variation == "one line":
            ids = list(q.facts)
        if variation == "14 lines":
            others = [f.id for f in corpus.facts.values() if f.tenant == q.tenant and not f.user]
            ids += rng.sample([i for i in others if i not in ids], 14 - len(ids))
        if variation in ("other order", "14 lines"):
            rng.shuffle(ids)
        if variation != "other wording":
            return corpus.lines(ids)
        facts = [corpus.facts[i] for i in ids]
        return [state(f.attribute, f.entity, f.value, rng.randrange(3)) for f in facts]

    for variation in (
        "as shipped", "other order", "no system prompt", "other system prompt", "one line",
        "14 lines", "other wording",
    ):  # fmt: skip
        system = {"no system prompt": "", "other system prompt": OTHER_SYSTEM}.get(
            variation, corpus.system_prompt
        )
        texts = [render_prompt(system, lines(q, variation), q.text) for q in questions]
        answers = generate(tokenizer, model, texts, 40)
        right = [is_correct(q, a, "v1") for q, a in zip(questions, answers, strict=True)]
        result[variation] = round(sum(right) / len(right), 4)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--every", type=int, default=1, help="take each n-th question")
    parser.add_argument("--failures", action="store_true", help="list wrong answers too")
    parser.add_argument("--vary", action="store_true", help="vary the prompts instead")
    args = parser.parse_args()
    if args.vary:
        print(json.dumps(evaluate_varied(args.model, args.every), indent=1))
        return
    print(json.dumps(evaluate(args.model, args.every, args.failures), indent=1))


if __name__ == "__main__":
    main()
