# ruff: noqa: F821  the notebook's first cell imports these names
# A right way: keys are the JSON of a nested list, shelves hold the entries themselves, and every
# event is one pass over them.


class AnswerCache:
    """One dictionary: partition and settings -> {question: record}."""

    def __init__(self, model, thresholds, freshness_s):
        self.model, self.thresholds, self.freshness_s = model, thresholds, freshness_s
        self.places = {}

    def place(self, request):
        owner = request["user"] if request["scope"] == "user" else None
        names = ["locale", "model", "policy_version", "temperature", "max_tokens"]
        settings = [request[name] for name in names]
        return json.dumps([[request["scope"], request["tenant"], owner], settings])

    def text(self, request):
        return unicodedata.normalize("NFC", request["question"])

    def key(self, request):
        return json.dumps([self.place(request), self.text(request)])

    def get(self, request, now_s):
        shelf = self.places.get(self.place(request), {})
        alive = {q: r for q, r in shelf.items() if now_s < r["until_s"]}
        if self.text(request) in alive:
            return alive[self.text(request)]["text"]
        try:
            asked = self.model.judge(request["question"])
            if asked["act"] != "ask" or asked["intent"] not in self.thresholds:
                return None
            for record in alive.values():
                if record["judged"] != asked:
                    continue
                near = self.model.similarity(request["question"], record["question"])
                if near >= self.thresholds[asked["intent"]]:
                    return record["text"]
        except Exception as error:
            print("no match:", error)
        return None

    def put(self, request, answer, now_s):
        try:
            judged = self.model.judge(request["question"])
        except Exception:
            return False
        if judged["act"] == "do" or answer["finish_reason"] != "stop":
            return False
        self.places.setdefault(self.place(request), {})[self.text(request)] = {
            "question": request["question"],
            "judged": judged,
            "text": answer["text"],
            "sources": set(answer["sources"]),
            "owner": (request["tenant"], request["user"]),
            "until_s": now_s + self.freshness_s,
        }
        return True

    def invalidate(self, event):
        def is_wrong(record):
            if event["kind"] == "source_changed":
                return event["source"] in record["sources"]
            if event["kind"] == "policy_changed":
                return record["owner"][0] == event["tenant"]
            return record["owner"] == (event["tenant"], event["user"])

        for place, shelf in self.places.items():
            self.places[place] = {q: r for q, r in shelf.items() if not is_wrong(r)}
