# ruff: noqa: F821  the notebook's first cell imports these names
# Another right way: one pass over the records into a ledger per class; fractions; early returns.
from fractions import Fraction


class Ledger:
    def __init__(self):
        self.asked, self.seen, self.due, self.kept = [], [], 0, 0

    def add(self, entry):
        is_ok = entry["outcome"] == "ok"
        if is_ok:
            self.asked.append(entry["first_s"] - entry["intended_s"])
            self.seen.append(entry["first_s"] - entry["sent_s"])
        if entry["outcome"] == "cancelled" or entry["deadline_s"] is None:
            return
        self.due += 1
        if is_ok and entry["ended_s"] - entry["intended_s"] <= entry["deadline_s"]:
            self.kept += 1

    @staticmethod
    def tail(values):
        if not values:
            return None
        return sorted(values)[-(-len(values) * 95 // 100) - 1]

    def attainment(self):
        return self.kept / self.due if self.due else None


class EfficiencyPlan:
    def __init__(self, price_per_hour, objectives):
        self.price, self.promised = price_per_hour, objectives

    def figures(self, records, rented_s):
        ledgers, tasks = {}, {}
        for entry in records:
            if entry["class"] not in ledgers:
                ledgers[entry["class"]] = Ledger()
            ledgers[entry["class"]].add(entry)
            if entry["outcome"] != "ok" or entry["is_leak"] or not entry["is_qualified"]:
                continue
            tasks[entry["task"]] = entry["id"]
        told = {"ttft_p95_s": {}, "uncorrected_p95_s": {}, "attainment": {}}
        for name, ledger in ledgers.items():
            told["ttft_p95_s"][name] = ledger.tail(ledger.asked)
            told["uncorrected_p95_s"][name] = ledger.tail(ledger.seen)
            told["attainment"][name] = ledger.attainment()
        told["qualified"] = len(tasks)
        told["cost_per_qualified"] = None
        if tasks:
            told["cost_per_qualified"] = rented_s / 3600 * self.price / len(tasks)
        return told

    def gate(self, base, new):
        reasons = []
        for check, held in base["authorisation"].items():
            if held is True and new["authorisation"].get(check) is not True:
                reasons = ["authorisation"]
        if "leaks" not in new or new["leaks"]:
            reasons.append("leak")
        for kind, before in base["quality"].items():
            if self.share(before) is None:
                continue
            after = self.share(new["quality"].get(kind))
            if after is None or after < self.share(before):
                return [*reasons, "quality"]
        return reasons

    @staticmethod
    def share(told):
        if told is None or told["requests"] == 0:
            return None
        return Fraction(told["qualified"], told["requests"])

    def classify(self, request):
        told = {
            "exact_cache": "tenant",
            "prefix_scope": "tenant",
            "prefill": "whole",
            "priority": 0,
            "is_job": False,
            "overload": "shorten",
        }
        if request["is_personal"] is None or request["is_personal"]:
            told["exact_cache"] = told["prefix_scope"] = "user"
        if request["is_consequential"] is None or request["is_consequential"]:
            told["exact_cache"], told["overload"] = "none", "refuse"
        if request["num_shared_tokens"] < BLOCK_TOKENS:
            told["prefix_scope"] = "none"
        if request["num_prompt_tokens"] > CHUNK_TOKENS:
            told["prefill"] = "chunked"
        if request["is_interactive"] is None or request["is_interactive"]:
            told["priority"] = 2
            return told
        if request["deadline_s"] is not None:
            told["priority"] = 1
            if request["deadline_s"] < JOB_DEADLINE_S:
                return told
        told["is_job"], told["overload"] = True, "defer"
        return told

    def recommend(self, variants):
        best = None
        for each in variants:
            cost = each["figures"]["cost_per_qualified"]
            if each["refused"] or cost is None or not self.will_do(each["figures"]):
                continue
            rank = [cost, len(each["changes"]), each["name"]]
            if best is None or rank < best:
                best = rank
        return best and best[2]

    def will_do(self, figures):
        for name in self.promised["ttft_p95_s"]:
            told_s = figures["ttft_p95_s"].get(name, math.inf)
            if told_s is None or told_s > self.promised["ttft_p95_s"][name]:
                return False
        for name in self.promised["attainment"]:
            if (figures["attainment"].get(name) or 0) < self.promised["attainment"][name]:
                return False
        return True
