# ruff: noqa: F821  the notebook's first cell imports these names
# A third right way: small objects with one duty each; the cache only asks them in turn.


class Name:
    """What a request is called, and the shelf that it stands on."""

    def __init__(self, request):
        self.question = unicodedata.normalize("NFC", request["question"])
        who = {"tenant": request["tenant"]}
        if request["scope"] == "user":
            who["user"] = request["user"]
        self.shelf = json.dumps(
            {"who": who, "scope": request["scope"]}
            | {k: request[k] for k in ("locale", "model", "policy_version")}
            | {"decoding": [request["temperature"], request["max_tokens"]]},
            sort_keys=True,
        )
        self.key = hashlib.sha512(json.dumps([self.shelf, self.question]).encode()).hexdigest()


class Gate:
    def __init__(self, model, thresholds):
        self.model, self.thresholds = model, thresholds

    def act(self, question):
        try:
            return self.model.judge(question)["act"]
        except Exception:
            return None

    def allows(self, asked, stored):
        try:
            one = self.model.judge(asked)
            if one["act"] != "ask" or one["intent"] not in self.thresholds:
                return False
            other = self.model.judge(stored)
            same = all(one[name] == other[name] for name in ("intent", "act", "sense"))
            return same and self.model.similarity(asked, stored) >= self.thresholds[one["intent"]]
        except Exception:
            return False


@dataclass
class Kept:
    name: Name
    request: dict
    answer: dict
    since_s: float
    is_gone: bool = False


class AnswerCache:
    def __init__(self, model, thresholds, freshness_s):
        self.gate, self.freshness_s, self.kept = Gate(model, thresholds), freshness_s, []

    def key(self, request):
        return Name(request).key

    def get(self, request, now_s):
        name = Name(request)
        on_shelf = [
            kept
            for kept in reversed(self.kept)
            if kept.name.shelf == name.shelf
            and not kept.is_gone
            and now_s - kept.since_s < self.freshness_s
        ]
        for kept in on_shelf:
            if kept.name.key == name.key:
                return kept.answer["text"]
        for kept in on_shelf:
            if self.gate.allows(request["question"], kept.request["question"]):
                return kept.answer["text"]
        return None

    def put(self, request, answer, now_s):
        if answer["finish_reason"] == "stop" and self.gate.act(request["question"]) == "ask":
            self.kept.append(Kept(Name(request), request, answer, now_s))
            return True
        return False

    def invalidate(self, event):
        for kept in self.kept:
            if event["kind"] == "source_changed":
                kept.is_gone |= event["source"] in kept.answer["sources"]
            elif kept.request["tenant"] == event["tenant"]:
                kept.is_gone |= event.get("user", kept.request["user"]) == kept.request["user"]
