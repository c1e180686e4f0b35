# ruff: noqa: F821  the notebook's first cell imports these names
# A right way: tables of rules and comprehensions; no method but the four, and no loop.


class EfficiencyPlan:
    FACTS = ("is_consequential", "is_personal", "is_interactive")

    def __init__(self, price_per_hour, objectives):
        self.price_per_s = price_per_hour / 3600
        self.promises = [
            (table, name, sign, limit)
            for table, sign in (("ttft_p95_s", 1), ("attainment", -1))
            for name, limit in objectives[table].items()
        ]

    def figures(self, records, rented_s):
        names = sorted({r["class"] for r in records})
        ok = [r for r in records if r["outcome"] == "ok"]
        waits = {
            start: {
                name: [r["first_s"] - r[start] for r in ok if r["class"] == name] for name in names
            }
            for start in ("intended_s", "sent_s")
        }
        tails = {
            start: {n: percentile(values, 0.95) if values else None for n, values in each.items()}
            for start, each in waits.items()
        }
        verdicts = {
            name: [
                r["outcome"] == "ok" and r["ended_s"] <= r["intended_s"] + r["deadline_s"] + 1e-12
                for r in records
                if r["class"] == name
                and r["outcome"] != "cancelled"
                and r["deadline_s"] is not None
            ]
            for name in names
        }
        tasks = {r["task"] for r in ok if r["is_qualified"] and not r["is_leak"]}
        return {
            "cost_per_qualified": self.price_per_s * rented_s / len(tasks) if tasks else None,
            "qualified": len(tasks),
            "attainment": {n: sum(v) / len(v) if v else None for n, v in verdicts.items()},
            "uncorrected_p95_s": tails["sent_s"],
            "ttft_p95_s": tails["intended_s"],
        }

    def gate(self, base, new):
        now = new["quality"]
        fell = [
            kind
            for kind, was in base["quality"].items()
            if was["requests"]
            and (
                now.get(kind, {}).get("requests", 0) == 0
                or now[kind]["qualified"] / now[kind]["requests"]
                < was["qualified"] / was["requests"] - 1e-12
            )
        ]
        lost = {k for k, v in base["authorisation"].items() if v is True} - {
            k for k, v in new["authorisation"].items() if v is True
        }
        told = {"authorisation": lost, "leak": new.get("leaks", "unknown"), "quality": fell}
        return [reason for reason, is_so in told.items() if is_so]

    def classify(self, request):
        acts, personal, waits = (request[name] in (True, None) for name in self.FACTS)
        deadline_s = math.inf if request["deadline_s"] is None else request["deadline_s"]
        is_job = {True: False, False: deadline_s >= JOB_DEADLINE_S}[waits]
        return {
            "is_job": is_job,
            "overload": {
                (True, True): "defer",
                (True, False): "defer",
                (False, True): "refuse",
            }.get((is_job, acts), "shorten"),
            "priority": (2, 2, 1, 0)[2 * (not waits) + (deadline_s == math.inf)],
            "prefill": ("whole", "chunked")[request["num_prompt_tokens"] > CHUNK_TOKENS],
            "prefix_scope": ("tenant", "user")[personal]
            if request["num_shared_tokens"] // BLOCK_TOKENS
            else "none",
            "exact_cache": {(False, False): "tenant", (False, True): "user"}.get(
                (acts, personal), "none"
            ),
        }

    def recommend(self, variants):
        def is_kept(figures, table, name, sign, limit):
            told = figures[table].get(name)
            return told is not None and sign * told <= sign * limit

        ranked = sorted(
            (each["figures"]["cost_per_qualified"], len(each["changes"]), each["name"])
            for each in variants
            if each["refused"] == []
            and each["figures"]["cost_per_qualified"] is not None
            and all(is_kept(each["figures"], *promise) for promise in self.promises)
        )
        return ranked[0][2] if ranked else None
