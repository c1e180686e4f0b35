# Another right way: columns of numbers and masks, with numpy.
import numpy as np


def summary(values):
    values = np.asarray(values, dtype=float)
    if values.size == 0:
        return None
    found = np.percentile(values, [50, 95, 99, 100], method="inverted_cdf")
    return dict(zip(("p50", "p95", "p99", "max"), found.tolist(), strict=True))


def lengths_of(column):
    if column.size == 0:
        return None
    p50 = np.sort(column)[(column.size - 1) // 2]
    return {"min": int(column.min()), "p50": int(p50), "max": int(column.max())}


class LoadReport:
    def __init__(self, records, ttft_limit_s, tpot_limit_s):
        self.records = np.array(records, dtype=object)
        self.ttft_limit_s, self.tpot_limit_s = ttft_limit_s, tpot_limit_s

    def figures(self):
        states = np.array([record["cache"] for record in self.records])
        return {str(s): self.group(self.records[states == s]) for s in np.unique(states)}

    def group(self, records):
        outcome = np.array([record["outcome"] for record in records])
        intended = np.array([record["intended_s"] for record in records])
        sent = np.array([record["sent_s"] for record in records])
        ended = np.array([record["ended_s"] for record in records])
        is_ok = outcome == "ok"
        streams = [
            np.array([(c["time_s"], c["num_tokens"]) for c in record["chunks"] if c["num_tokens"]])
            for record in records[is_ok]
        ]
        first = np.array([stream[0, 0] for stream in streams])
        last = np.array([stream[-1, 0] for stream in streams])
        count = np.array([stream[:, 1].sum() for stream in streams], dtype=int)
        prompt = np.array([r["num_prompt_tokens"] for r in records[is_ok]], dtype=int)
        many = count > 1
        tpot = np.zeros(count.size)
        tpot[many] = (last - first)[many] / (count[many] - 1)
        gaps = [np.zeros(0)]
        for stream in streams:
            sizes = stream[:, 1].astype(int)
            each = np.diff(stream[:, 0], prepend=stream[0, 0]) / sizes
            gaps.append(np.repeat(each, sizes)[1:])
        ttft = first - intended[is_ok]
        num_good = int(((ttft <= self.ttft_limit_s) & (tpot <= self.tpot_limit_s)).sum())
        num_tried = int(np.isin(outcome, ["ok", "error", "timeout"]).sum())
        duration = float(ended.max() - intended.min())
        is_fixed = count.size > 1 and (np.ptp(count) == 0 or np.ptp(prompt) == 0)
        return {
            "requests": len(records),
            "outcomes": {name: int((outcome == name).sum()) for name in OUTCOMES},  # noqa: F821
            "ttft_s": summary(ttft),
            "e2e_s": summary(last - intended[is_ok]),
            "tpot_s": summary(tpot[many]),
            "itl_s": summary(np.concatenate(gaps)),
            "dispatch_s": summary(sent - intended),
            "output_tokens": int(count.sum()),
            "output_tokens_per_s": float(count.sum() / duration) if duration else None,
            "requests_per_s": count.size / duration if duration else None,
            "attainment": num_good / num_tried if num_tried else None,
            "prompt_tokens": lengths_of(prompt),
            "answer_tokens": lengths_of(count),
            "has_fixed_lengths": bool(is_fixed),
        }
