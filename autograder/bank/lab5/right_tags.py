# ruff: noqa: F821  the notebook's first cell imports these names
# Another right way: every entry carries tags; a key is made of length-prefixed bytes; another
# wording is found among all entries by comparing everything but the question.


class AnswerCache:
    def __init__(self, model, thresholds, freshness_s):
        self.model = model
        self.thresholds = dict(thresholds)
        self.freshness_s = freshness_s
        self.rows = []  # [key, form, text, stored_s, tags]

    @staticmethod
    def form(request):
        kept = dict(request, question=unicodedata.normalize("NFC", request["question"]))
        if kept["scope"] == "tenant":
            del kept["user"]
        return kept

    def key(self, request):
        parts = []
        for name, value in sorted(self.form(request).items()):
            written = f"{type(value).__name__} {value}".encode("utf-8", "surrogatepass")
            parts.append(f"{name} {len(written)} ".encode() + written)
        return hashlib.blake2b(b"".join(parts)).hexdigest()

    def get(self, request, now_s):
        self.rows = [row for row in self.rows if now_s - row[3] < self.freshness_s]
        key, form = self.key(request), self.form(request)
        exact = [row[2] for row in self.rows if row[0] == key]
        if exact:
            return exact[0]
        similar = [row for row in self.rows if self.is_near(form, row[1])]
        return similar[0][2] if similar else None

    def is_near(self, form, stored):
        if {**form, "question": 0} != {**stored, "question": 0}:
            return False
        if [type(form[name]) for name in form] != [type(stored[name]) for name in form]:
            return False
        asked, told = form["question"], stored["question"]
        try:
            verdicts = [self.model.judge(asked), self.model.judge(told)]
            least = self.thresholds[verdicts[0]["intent"]]
            if self.model.similarity(asked, told) < least:
                return False
        except Exception:  # also an intent that is not listed
            return False
        return verdicts[0] == verdicts[1] and {v["act"] for v in verdicts} == {"ask"}

    def put(self, request, answer, now_s):
        is_complete = answer["finish_reason"] == "stop"
        if not is_complete or self.act(request) != "ask":
            return False
        key = self.key(request)
        tags = [("tenant", request["tenant"]), ("user", request["tenant"], request["user"])]
        tags += [("source", source) for source in answer["sources"]]
        self.rows = [row for row in self.rows if row[0] != key]
        self.rows.append([key, self.form(request), answer["text"], now_s, tags])
        return True

    def act(self, request):
        try:
            return self.model.judge(request["question"])["act"]
        except Exception:
            return "unknown"

    def invalidate(self, event):
        tag = {
            "source_changed": ("source", event.get("source")),
            "policy_changed": ("tenant", event.get("tenant")),
            "user_deleted": ("user", event.get("tenant"), event.get("user")),
        }[event["kind"]]
        self.rows = [row for row in self.rows if tag not in row[4]]
