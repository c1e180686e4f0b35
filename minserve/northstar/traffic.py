"""Northstar's traffic: the same requests at the same times, for whoever wants to serve them.

Four kinds of work, in the shares of `MIX`: public policy questions, personal account questions
(with tool schemas in the prompt), chats of several turns behind a long shared system prompt, and
document reports (tool schemas and a document template). Two sets:

    timing   output lengths are forced (`ignore_eos`, `max_tokens`), so that every policy does the
             same work; what the model says does not matter
    quality  the shipped questions as they are, with natural stops and checkable answers

Lengths of the timing set are bootstrapped from real traces (`minserve.northstar.lengths`) and
scaled by `SCALES`, for northstar-nano writes in tens of tokens what the traced services wrote in
hundreds. A prompt is filled up with evidence lines to the drawn length, and is never shorter than
its system prompt and question. Arrivals come in bursts: not Poisson (`burst_times_s`).

Who asks comes from the tenants' records, and so does the salt of the prefix cache: one per tenant.
Chats and answers in their history are fixed beforehand, so arrivals do not wait for the server
(open loop): a slow server gets no easier traffic.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from minserve.errors import ConfigError
from minserve.northstar.corpus import Corpus, User, load_corpus, read_json
from minserve.northstar.lengths import AZURE, MOONCAKE, LengthTable
from minserve.northstar.paths import data_dir
from minserve.northstar.prompts import render_prompt, render_user
from minserve.northstar.questions import Question, load_questions, prompt_of
from minserve.request import Identity, Request, SamplingParams, WorkloadClass

SETS = ("timing", "quality")
MIX = {"policy": 0.4, "account": 0.24, "chat": 0.28, "report": 0.08}
"""Share of each kind among the requests; each turn of a chat is a request."""

CLASSES = {
    "policy": WorkloadClass.INTERACTIVE,
    "account": WorkloadClass.INTERACTIVE,
    "chat": WorkloadClass.STANDARD,
    "report": WorkloadClass.BATCH,
}
DEADLINES_S = {
    WorkloadClass.INTERACTIVE: 2.0,
    WorkloadClass.STANDARD: 4.0,
    WorkloadClass.BATCH: 20.0,
}
PRIORITIES = {WorkloadClass.INTERACTIVE: 2, WorkloadClass.STANDARD: 1, WorkloadClass.BATCH: 0}
TENANT_WEIGHTS = (3, 2, 1)
"""How much busier the first tenant is than the last."""

TOOLS = {"account": "lookup_account", "report": "write_document"}
"""Which tool's schema stands in the prompt of which kind."""

BURST_FACTOR = 8.0
"""How much faster requests arrive in a burst than in a calm; half of them come in bursts."""
MEAN_RUN = 12
"""Mean number of requests from one change of pace to the next."""
MAX_TURNS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """Which trace a kind's lengths come from, and what they are multiplied by."""

    trace: str
    prompt: float
    output: float


SCALES = {
    "policy": Scale(AZURE, 1 / 8, 1 / 8),
    "account": Scale(AZURE, 1 / 8, 1 / 8),
    "chat": Scale(AZURE, 1 / 8, 1 / 8),
    "report": Scale(MOONCAKE, 1 / 32, 1.0),
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the traffic. `request()` makes a fresh `Request` of it, for each replay.

    `arrival_s` and `deadline_s` are seconds from the start of the traffic. `question` is what the
    answer can be checked against, in the quality set.
    """

    id: str
    kind: str
    prompt: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    identity: Identity
    cache_salt: str
    workload_class: WorkloadClass
    arrival_s: float
    deadline_s: float
    priority: int
    question: Question | None = None

    def request(self) -> Request:
        """What an `EngineClient` takes."""
        return Request(
            self.id,
            self.prompt_token_ids,
            self.sampling,
            identity=self.identity,
            workload_class=self.workload_class,
            arrival_s=self.arrival_s,
            deadline_s=self.deadline_s,
            priority=self.priority,
            cache_salt=self.cache_salt,
        )


def make_traffic(
    which: str,
    num_requests: int,
    encode: Callable[[str], Sequence[int]],
    *,
    rate_per_s: float,
    seed: int = 0,
    corpus: Corpus | None = None,
    max_total_tokens: int = 2048,
) -> list[Arrival]:
    """`num_requests` arrivals of the set `which`, in order of time; equal seeds, equal traffic.

    Args:
        which: `timing` or `quality`.
        num_requests: At least 1.
        encode: Text to token ids, as the served model has it.
        rate_per_s: Mean arrivals per second; only the times depend on it.
        seed: Of everything drawn.
        corpus: The policy version to speak of; v1 by default.
        max_total_tokens: Cap on prompt plus output of one request, in tokens.

    Raises `ConfigError` for a setting without meaning, and what loading the corpus raises.
    """
    if which not in SETS:
        raise ConfigError(f"there is no traffic set {which!r}", f"use {' or '.join(SETS)}")
    if num_requests < 1:
        raise ConfigError(f"{num_requests} requests", "ask for at least 1")
    if not 0 < rate_per_s < float("inf"):
        raise ConfigError(f"rate_per_s is {rate_per_s}", "use more than 0 requests per second")
    maker = _Maker(random.Random(f"northstar/{which}/{seed}"), encode, corpus or load_corpus())
    times_s = burst_times_s(random.Random(f"northstar/times/{seed}"), num_requests)
    make = maker.timing if which == "timing" else maker.quality
    return [
        replace(
            arrival,
            id=f"{arrival.kind}-{number:04}",
            arrival_s=time_s / rate_per_s,
            deadline_s=time_s / rate_per_s + arrival.deadline_s,
        )
        for number, (arrival, time_s) in enumerate(
            zip(make(num_requests, max_total_tokens), times_s, strict=True)
        )
    ]


def at_rate(traffic: Sequence[Arrival], old_per_s: float, new_per_s: float) -> list[Arrival]:
    """The same traffic, faster or slower: only arrival times change, and deadlines with them."""
    return [
        replace(
            arrival,
            arrival_s=(later := arrival.arrival_s * old_per_s / new_per_s),
            deadline_s=later + arrival.deadline_s - arrival.arrival_s,
        )
        for arrival in traffic
    ]


def burst_times_s(rng: random.Random, count: int) -> list[float]:
    """`count` arrival times from 0 on, at a mean rate of 1 per second, in calms and bursts.

    A Markov-modulated Poisson process (Fischer and Meier-Hellstern, 1993): within a state gaps are
    exponential, and each request may change the state. Its counts per window vary several times
    more than a Poisson process's, as in the Azure trace by the minute.
    """
    calm_rate = 0.5 * (1 + 1 / BURST_FACTOR)
    time_s, in_burst, times_s = 0.0, False, []
    for _ in range(count):
        times_s.append(time_s)
        if rng.random() < 1 / MEAN_RUN:
            in_burst = not in_burst
        time_s += rng.expovariate(calm_rate * (BURST_FACTOR if in_burst else 1))
    return times_s


def salt_of(user: User) -> str:
    """The prefix-cache salt of a user: the tenant's, so that nothing is shared beyond it."""
    return f"tenant:{user.tenant}"


class _Maker:
    """Draws arrivals; their times and ids are filled in later."""

    def __init__(self, rng: random.Random, encode, corpus: Corpus) -> None:
        self.rng = rng
        self.encode = encode
        self.corpus = corpus
        self.questions = load_questions()
        self.tasks = read_json(data_dir() / "tasks.json")["tasks"]
        self.documents = read_json(data_dir() / "documents.json")["documents"]
        tools = read_json(data_dir() / "tools.json")["tools"]
        self.tools = {tool["function"]["name"]: _compact(tool) for tool in tools}
        self._num_tokens: dict[str, int] = {}

    # -- the quality set

    def quality(self, count: int, max_total_tokens: int) -> list[Arrival]:
        """Every question at most once until all were asked."""
        decks: dict[str, list[Question]] = {kind: [] for kind in MIX}
        return [self._asked(kind, decks) for kind in self._kinds(count)]

    def _asked(self, kind: str, decks: dict[str, list[Question]]) -> Arrival:
        if not decks[kind]:
            decks[kind] = [q for q in self.questions if q.kind == kind]
            self.rng.shuffle(decks[kind])
        question = decks[kind].pop()
        sampling = SamplingParams(max_tokens=self.tasks[kind]["max_tokens"])
        prompt = prompt_of(question, self.corpus)
        user = self._user(question.tenant, question.user)
        return self._arrival(kind, prompt, sampling, user, question)

    # -- the timing set

    def timing(self, count: int, max_total_tokens: int) -> list[Arrival]:
        arrivals: list[Arrival] = []
        chats: list[_Chat] = []
        for kind in self._kinds(count):
            if kind == "chat":
                chat = self._chat(chats, max_total_tokens // 2)
                arrivals.append(self._timed(kind, chat.user, max_total_tokens, chat))
            else:
                arrivals.append(self._timed(kind, self._user(), max_total_tokens))
        return arrivals

    def _chat(self, chats: list[_Chat], max_tokens: int) -> _Chat:
        """A chat that goes on, if it is not too long yet, or a new one."""
        open_chats = [
            chat for chat in chats if len(chat.history) < MAX_TURNS and chat.num_tokens < max_tokens
        ]
        if open_chats and self.rng.random() < 0.7:
            return self.rng.choice(open_chats)
        chats.append(_Chat(self._user()))
        return chats[-1]

    def _timed(
        self, kind: str, user: User, max_total_tokens: int, chat: _Chat | None = None
    ) -> Arrival:
        scale, rng = SCALES[kind], self.rng
        prompt_tokens, output_tokens = LengthTable.load(scale.trace).draw(rng)
        history = list(chat.history) if chat else []
        question = self._question(kind, user)
        system = self._system(kind)
        evidence = self.corpus.lines(question.evidence)
        prompt = render_prompt(system, evidence, question.text, history)
        most = max_total_tokens // 4 if chat else max_total_tokens * 3 // 4
        missing = min(round(prompt_tokens * scale.prompt), most) - len(self.encode(prompt))
        if missing > 0:
            evidence = [*self._filler(user, missing), *evidence]
            prompt = render_prompt(system, evidence, question.text, history)
        if chat:
            said = render_user(evidence, question.text)
            chat.history.append((said, question.expected[self.corpus.version]))
            chat.num_tokens = len(self.encode(prompt))
        room = max_total_tokens - len(self.encode(prompt))
        if room < 1:
            raise ConfigError(
                f"a {kind} prompt takes {max_total_tokens - room} tokens of {max_total_tokens}",
                "allow more tokens per request",
            )
        max_tokens = max(1, min(round(output_tokens * scale.output), room))
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return self._arrival(kind, prompt, sampling, user)

    def _question(self, kind: str, user: User) -> Question:
        kind = "policy" if kind == "chat" else kind
        fitting = [q for q in self.questions if q.kind == kind and q.tenant == user.tenant]
        if kind in ("account", "report"):
            fitting = [q for q in fitting if q.user in (None, user.id)]
        return self.rng.choice(fitting)

    def _system(self, kind: str) -> str:
        """What does not change from request to request comes first: prefixes can be reused."""
        system = self.corpus.system_prompt
        if kind in TOOLS:
            system += f"\nTool: {self.tools[TOOLS[kind]]}"
        if kind == "report":
            system += f"\nTemplate: {_compact(self.rng.choice(self.documents))}"
        return system

    def _filler(self, user: User, num_tokens: int) -> list[str]:
        """Public lines of the user's tenant, about `num_tokens` of them, in random order."""
        lines = [f.text for f in self.corpus.facts.values() if f.tenant == user.tenant]
        lines = [line for line in lines if not line.startswith("Your ")]
        chosen: list[str] = []
        while num_tokens > 0:
            line = self.rng.choice(lines)
            if line not in self._num_tokens:
                self._num_tokens[line] = len(self.encode(f"- {line}\n"))
            num_tokens -= self._num_tokens[line]
            chosen.append(line)
        return chosen

    # -- both

    def _kinds(self, count: int) -> list[str]:
        """The kinds in their exact shares, rounded, in random order: no luck in the mix."""
        kinds = [kind for kind, share in MIX.items() for _ in range(round(share * count))]
        kinds = (kinds + ["policy"] * count)[:count] if len(kinds) < count else kinds
        self.rng.shuffle(kinds)
        return kinds[:count]

    def _user(self, tenant: str | None = None, user: str | None = None) -> User:
        if user:
            return next(u for u in self.corpus.users if u.id == user)
        tenants = [t for t in self.corpus.tenants if tenant in (None, t.id)]
        weights = TENANT_WEIGHTS[: len(tenants)] + (1,) * (len(tenants) - len(TENANT_WEIGHTS))
        return self.rng.choice(self.rng.choices(tenants, weights)[0].users)

    def _arrival(
        self,
        kind: str,
        prompt: str,
        sampling: SamplingParams,
        user: User,
        question: Question | None = None,
    ) -> Arrival:
        workload_class = CLASSES[kind]
        return Arrival(
            id="",
            kind=kind,
            prompt=prompt,
            prompt_token_ids=tuple(self.encode(prompt)),
            sampling=sampling,
            identity=Identity(user.tenant, user.id),
            cache_salt=salt_of(user),
            workload_class=workload_class,
            arrival_s=0.0,
            deadline_s=DEADLINES_S[workload_class],
            priority=PRIORITIES[workload_class],
            question=question,
        )


def _compact(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))


@dataclass(slots=True)
class _Chat:
    """A conversation so far; history is (content of the user's message, right answer)."""

    user: User
    history: list[tuple[str, str]] = field(default_factory=list)
    num_tokens: int = 0
