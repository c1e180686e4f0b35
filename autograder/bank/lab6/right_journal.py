# ruff: noqa: F821  the notebook's first cell imports these names
# A right way: nothing is ever changed. Each call appends one event, and what a job is by now is
# worked out from its events, and from the time.


class PaymentQueue:
    def __init__(self, store, lease_s, max_attempts):
        self.store, self.lease_s, self.limit = store, lease_s, max_attempts

    def events(self):
        return [event for _, event in self.store.rows("journal")]

    def append(self, event, payments=()):
        number = len(self.events())
        self.store.commit([*payments, ["journal", f"{number}", event]])

    def jobs(self, now_s):
        """id -> its state by now, in the order of acceptance."""
        made = {}
        for event in self.events():
            if event["what"] == "submit":
                made[event["job"]] = {
                    "key": event["key"],
                    "body": event["body"],
                    "state": "queued",
                    "tries": 0,
                    "token": 0,
                    "until_s": None,
                    "result": None,
                }
                continue
            job = made[event["job"]]
            self.expire(job, event["at_s"])
            if event["what"] == "claim":
                job.update(state="running", tries=job["tries"] + 1, token=event["token"])
                job["until_s"] = event["at_s"] + self.lease_s
            elif event["what"] == "renew":
                job["until_s"] = event["at_s"] + self.lease_s
            elif event["what"] == "complete":
                job.update(state="done", result=event["result"])
            elif event["what"] == "fail":
                job["state"] = "dead" if job["tries"] >= self.limit else "queued"
            elif event["what"] == "redrive":
                job.update(state="queued", tries=0)
        for job in made.values():
            self.expire(job, now_s)
        return made

    def expire(self, job, now_s):
        if job["state"] == "running" and not now_s < job["until_s"]:
            job["state"] = "dead" if job["tries"] >= self.limit else "queued"

    def submit(self, key, body, now_s):
        jobs = self.jobs(now_s)
        for job_id, job in jobs.items():
            if job["key"] == key:
                return job_id if job["body"] == body else None
        job_id = f"{len(jobs)}th"
        self.append({"what": "submit", "job": job_id, "key": key, "body": body, "at_s": now_s})
        return job_id

    def claim(self, worker, now_s):
        queued = [item for item in self.jobs(now_s).items() if item[1]["state"] == "queued"]
        if not queued:
            return None
        job_id, job = queued[0]
        token = 1 + len(self.events())  # grows with every event, so it is never given twice
        self.append({"what": "claim", "job": job_id, "token": token, "at_s": now_s, "by": worker})
        return {"job": job_id, "token": token, "attempt": job["tries"] + 1, "body": job["body"]}

    def is_holder(self, job_id, token, now_s):
        job = self.jobs(now_s).get(job_id, {"state": None})
        return job["state"] == "running" and job["token"] == token

    def renew(self, job_id, token, now_s):
        is_mine = self.is_holder(job_id, token, now_s)
        if is_mine:
            self.append({"what": "renew", "job": job_id, "at_s": now_s})
        return is_mine

    def complete(self, job_id, token, result, payments, now_s):
        if self.is_holder(job_id, token, now_s):
            event = {"what": "complete", "job": job_id, "result": result, "at_s": now_s}
            pay = [["ledger", json.dumps([job_id, name]), p] for name, p in payments.items()]
            self.append(event, pay)
            return True
        job = self.jobs(now_s).get(job_id)
        return job is not None and job["state"] == "done" and job["token"] == token

    def fail(self, job_id, token, reason, now_s):
        is_mine = self.is_holder(job_id, token, now_s)
        if is_mine:
            self.append({"what": "fail", "job": job_id, "why": reason, "at_s": now_s})
        return is_mine

    def status(self, job_id, now_s):
        job = self.jobs(now_s).get(job_id)
        return job and {"state": job["state"], "attempts": job["tries"], "result": job["result"]}

    def dead(self, now_s):
        return [job_id for job_id, job in self.jobs(now_s).items() if job["state"] == "dead"]

    def redrive(self, job_id, now_s):
        if job_id not in self.dead(now_s):
            return False
        self.append({"what": "redrive", "job": job_id, "at_s": now_s})
        return True
