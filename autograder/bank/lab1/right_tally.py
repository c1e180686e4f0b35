# Another right way: one pass; a tally per cache state takes each record in and forgets it.
from bisect import insort
from collections import Counter, defaultdict


class Tally:
    def __init__(self):
        self.outcomes = Counter()
        self.sorted = defaultdict(list)
        self.start_s, self.end_s = float("inf"), float("-inf")
        self.num_good = self.num_tokens = 0

    def take(self, record, limits):
        asked_s = record["intended_s"]
        self.outcomes[record["outcome"]] += 1
        self.start_s = min(self.start_s, asked_s)
        self.end_s = max(self.end_s, record["ended_s"])
        insort(self.sorted["dispatch_s"], record["sent_s"] - asked_s)
        if record["outcome"] != "ok":
            return
        first_s = last_s = None
        length = 0
        for piece in record["chunks"]:
            size, now_s = piece["num_tokens"], piece["time_s"]
            if not size:
                continue
            if first_s is None:
                first_s = last_s = now_s
                length = 1  # the first token has no gap before it
                insort(self.sorted["ttft_s"], now_s - asked_s)
                size -= 1
                share_s = 0.0
            else:
                share_s = (now_s - last_s) / size
            for _ in range(size):
                insort(self.sorted["itl_s"], share_s)
            length += size
            last_s = now_s
        insort(self.sorted["e2e_s"], last_s - asked_s)
        is_good = first_s - asked_s <= limits[0]
        if length > 1:
            tpot_s = (last_s - first_s) / (length - 1)
            insort(self.sorted["tpot_s"], tpot_s)
            is_good = is_good and tpot_s <= limits[1]
        self.num_good += is_good
        self.num_tokens += length
        insort(self.sorted["prompt_tokens"], record["num_prompt_tokens"])
        insort(self.sorted["answer_tokens"], length)

    def at(self, name, shares):
        values = self.sorted[name]
        return {key: percentile(values, share) for key, share in shares.items()} if values else None  # noqa: F821

    def figures(self):
        took_s = self.end_s - self.start_s
        num_ok = self.outcomes["ok"]
        tried = num_ok + self.outcomes["error"] + self.outcomes["timeout"]
        lengths = {"min": 0.0, "p50": 0.5, "max": 1.0}
        found = {
            "requests": sum(self.outcomes.values()),
            "outcomes": {name: self.outcomes[name] for name in OUTCOMES},  # noqa: F821
            "output_tokens": self.num_tokens,
            "attainment": self.num_good / tried if tried else None,
            "has_fixed_lengths": False,
        }
        for name in ("ttft_s", "e2e_s", "tpot_s", "itl_s", "dispatch_s"):
            found[name] = self.at(name, SHARES)  # noqa: F821
        for name in ("prompt_tokens", "answer_tokens"):
            found[name] = self.at(name, lengths)
            values = self.sorted[name]
            found["has_fixed_lengths"] |= len(values) > 1 and values[0] == values[-1]
        per_s = (lambda count: count / took_s) if took_s else (lambda count: None)
        found["output_tokens_per_s"], found["requests_per_s"] = map(
            per_s, (self.num_tokens, num_ok)
        )
        return found


class LoadReport:
    def __init__(self, records, ttft_limit_s, tpot_limit_s):
        self.records, self.limits = records, (ttft_limit_s, tpot_limit_s)

    def figures(self):
        tallies = defaultdict(Tally)
        for record in self.records:
            tallies[record["cache"]].take(record, self.limits)
        return {state: tally.figures() for state, tally in tallies.items()}
