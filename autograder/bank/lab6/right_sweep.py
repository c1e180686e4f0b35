# ruff: noqa: F821  the notebook's first cell imports these names
# A third right way: a sweep at the beginning of each call ends the leases that have run out, so
# that a row says how things are. A job's row holds its attempts; one counter gives all tokens.


class PaymentQueue:
    def __init__(self, store, lease_s, max_attempts):
        self.store = store
        self.lease_s = lease_s
        self.max_attempts = max_attempts

    def swept(self, now_s):
        """All jobs, {id: row}; leases that are over by now have been ended in the store."""
        rows = dict(self.store.rows("orders"))
        late = [
            name
            for name, row in rows.items()
            if row["attempts"] and row["attempts"][-1].get("until_s", now_s + 1) <= now_s
        ]
        for name in late:
            self.end(rows[name], "its lease ran out")
        if late:
            self.store.commit([["orders", name, rows[name]] for name in late])
        return rows

    def end(self, row, how):
        del row["attempts"][-1]["until_s"]
        row["attempts"][-1]["end"] = how
        row["place"] = "queued" if len(row["attempts"]) < row["allowed"] else "dead"

    def submit(self, key, body, now_s):
        rows = self.swept(now_s)
        if key in rows:
            return key if rows[key]["body"] == body else None
        row = {"body": body, "place": "queued", "attempts": [], "allowed": self.max_attempts}
        self.store.commit([["orders", key, row]])
        return key

    def claim(self, worker, now_s):
        waiting = ((n, row) for n, row in self.swept(now_s).items() if row["place"] == "queued")
        name, row = next(waiting, (None, None))
        if row is None:
            return None
        token = (self.store.get("counters", "token") or 0) + 7
        row["place"] = "running"
        row["attempts"].append({"by": worker, "token": token, "until_s": now_s + self.lease_s})
        self.store.commit([["counters", "token", token], ["orders", name, row]])
        number = len(row["attempts"]) - (row["allowed"] - self.max_attempts)
        return {"job": name, "token": token, "attempt": number, "body": row["body"]}

    def change(self, name, token, now_s, edit, payments=()):
        """Have `edit` change the row of a job that is held with this token, in one commit."""
        row = self.swept(now_s).get(name)
        if row is None or row["place"] != "running" or row["attempts"][-1]["token"] != token:
            return False
        edit(row)
        self.store.commit([["orders", name, row], *payments])
        return True

    def renew(self, name, token, now_s):
        def edit(row):
            row["attempts"][-1]["until_s"] = now_s + self.lease_s

        return self.change(name, token, now_s, edit)

    def complete(self, name, token, result, payments, now_s):
        def edit(row):
            self.end(row, "completed")
            row["place"], row["result"] = "done", result

        ledger = [["ledger", f"{token}/{kind}", paid] for kind, paid in payments.items()]
        if self.change(name, token, now_s, edit, ledger):
            return True
        row = self.store.get("orders", name)
        is_done = row is not None and row["place"] == "done"
        return is_done and row["attempts"][-1]["token"] == token

    def fail(self, name, token, reason, now_s):
        return self.change(name, token, now_s, lambda row: self.end(row, reason))

    def status(self, name, now_s):
        row = self.swept(now_s).get(name)
        if row is None:
            return None
        number = len(row["attempts"]) - (row["allowed"] - self.max_attempts)
        return {"state": row["place"], "attempts": number, "result": row.get("result")}

    def dead(self, now_s):
        return [name for name, row in self.swept(now_s).items() if row["place"] == "dead"]

    def redrive(self, name, now_s):
        row = self.swept(now_s).get(name)
        if row is None or row["place"] != "dead":
            return False
        row |= {"place": "queued", "allowed": len(row["attempts"]) + self.max_attempts}
        self.store.commit([["orders", name, row]])
        return True
