# A right way: each answer becomes the list of its tokens' times; every figure is read off that.
from dataclasses import dataclass
from itertools import groupby


@dataclass
class Answer:
    asked_s: float
    prompt: int
    tokens_s: list  # one (time, gap to the token before) per token

    @classmethod
    def read(cls, record):
        tokens, before_s = [], None
        for piece in record["chunks"]:
            count = piece["num_tokens"]
            for _ in range(count):
                start_s = piece["time_s"] if before_s is None else before_s
                tokens.append((piece["time_s"], (piece["time_s"] - start_s) / count))
            if count:
                before_s = piece["time_s"]
        return cls(record["intended_s"], record["num_prompt_tokens"], tokens)

    @property
    def ttft_s(self):
        return self.tokens_s[0][0] - self.asked_s

    @property
    def e2e_s(self):
        return self.tokens_s[-1][0] - self.asked_s

    @property
    def itl_s(self):
        return [gap_s for _, gap_s in self.tokens_s[1:]]

    @property
    def tpot_s(self):
        return (self.e2e_s - self.ttft_s) / len(self.itl_s) if self.itl_s else None


def five(values):
    values = sorted(value for value in values if value is not None)
    return {n: percentile(values, s) for n, s in SHARES.items()} if values else None  # noqa: F821


def three(values):
    whole = sorted(values)
    return (
        {"min": whole[0], "p50": percentile(whole, 0.5), "max": whole[-1]} if whole else None  # noqa: F821
    )


class LoadReport:
    def __init__(self, records, ttft_limit_s, tpot_limit_s):
        self.limits = ttft_limit_s, tpot_limit_s
        by_state = sorted(records, key=lambda record: record["cache"])
        self.groups = {k: list(g) for k, g in groupby(by_state, key=lambda r: r["cache"])}

    def figures(self):
        return {state: self.of(group) for state, group in self.groups.items()}

    def of(self, group):
        answers = [Answer.read(record) for record in group if record["outcome"] == "ok"]
        outcomes = {name: 0 for name in OUTCOMES}  # noqa: F821
        for record in group:
            outcomes[record["outcome"]] += 1
        took_s = max(r["ended_s"] for r in group) - min(r["intended_s"] for r in group)
        tried = sum(outcomes.values()) - outcomes["rejected"]
        good = [
            a for a in answers if a.ttft_s <= self.limits[0] and (a.tpot_s or 0) <= self.limits[1]
        ]
        prompts, sizes = [a.prompt for a in answers], [len(a.tokens_s) for a in answers]
        return dict(
            requests=len(group),
            outcomes=outcomes,
            ttft_s=five(a.ttft_s for a in answers),
            e2e_s=five(a.e2e_s for a in answers),
            tpot_s=five(a.tpot_s for a in answers),
            itl_s=five(gap_s for a in answers for gap_s in a.itl_s),
            dispatch_s=five(r["sent_s"] - r["intended_s"] for r in group),
            output_tokens=sum(sizes),
            output_tokens_per_s=sum(sizes) / took_s if took_s else None,
            requests_per_s=len(answers) / took_s if took_s else None,
            attainment=len(good) / tried if tried else None,
            prompt_tokens=three(prompts),
            answer_tokens=three(sizes),
            has_fixed_lengths=len(answers) > 1
            and (min(prompts) == max(prompts) or min(sizes) == max(sizes)),
        )
