"""Lab 4's world: blocks, what each really holds, and what every look-up should find.

The world computes; the learner's cache only says which blocks may be reused. So a block that does
not hold the asker's own prefix is seen here, whatever the cache believes, and time to first
token follows from the tokens that are left to compute.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from autograder.harness import ChildMisbehaved, Raised, RemoteError
from autograder.scoring.base import Finding, Session

CLASS = "PrefixCache"
DIGEST = {
    "name": "digest",
    "methods": {"__call__": ["text"]},
    "properties": [],
    "emptied": {},
}
FIXED_US, TOKEN_US = 4000, 100  # of a time to first token
Request = dict[str, Any]
Prefix = tuple[Any, Any, tuple[int, ...]]  # salt, adapter, all tokens up to the end of the block


@dataclass
class World:
    """A cache under test, and the blocks that it speaks of."""

    session: Session
    size: int
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_digests: int | None = None  # how many different ones there are; None: plenty
        self.num_blocks = 0
        self.held: dict[int, Prefix] = {}
        self.was: dict[int, set[Prefix]] = {}  # what a block held before it was evicted
        self.session.new(CLASS, [self.size, {"remote": DIGEST}], self.serve)

    def serve(self, name: str, method: str, args: list[Any]) -> Any:
        if (name, method, len(args)) != ("digest", "__call__", 1):
            raise ChildMisbehaved(f"asked for {name[:40]}.{method[:40]} with {len(args)} arguments")
        if type(args[0]) is not str:
            raise RemoteError("TypeError", "digest takes a text")
        full = hashlib.sha256(args[0].encode("utf-8", "surrogatepass")).hexdigest()
        return full[:16] if self.num_digests is None else str(int(full, 16) % self.num_digests)

    # -- what a story does

    def blocks_for(self, request: Request) -> list[int]:
        """New blocks for a whole prompt."""
        first = self.num_blocks
        self.num_blocks += -(-len(request["tokens"]) // self.size)
        return list(range(first, self.num_blocks))

    def commit(
        self, request: Request, blocks: list[int] | None = None, num_computed: int | None = None
    ) -> list[int]:
        """Compute the first tokens of a prompt, or all of it, and say so; returns its blocks."""
        tokens = request["tokens"]
        num_computed = len(tokens) if num_computed is None else num_computed
        blocks = self.blocks_for(request) if blocks is None else blocks
        for index in range(-(-num_computed // self.size)):
            end = min((index + 1) * self.size, num_computed)
            self.held[blocks[index]] = prefix(request, end)
        self.call("commit", request, blocks, num_computed)
        return blocks

    def evict(self, block: int) -> None:
        self.call("evict", block)
        if block in self.held:
            self.was.setdefault(block, set()).add(self.held.pop(block))

    def look(self, request: Request, kind: str = "", when: str = "") -> int:
        """Match, and compare: every block must hold the asker's own prefix, and none be missing.

        `kind` names what is wrong with a block that does not, where the story knows better.
        Returns the number of tokens that are reused.
        """
        told = self.call("match", request)
        if type(told) is not list or any(type(block) is not int for block in told):
            self.find("no_reuse", when)
            return 0
        for index, block in enumerate(told):
            due = prefix(request, (index + 1) * self.size)
            if self.held.get(block) != due:
                self.find(kind or self._fault(block, due), when)
                break
        if told and len(told) * self.size >= len(request["tokens"]):
            self.find("nothing_left", when)
        if len(told) < self.due(request):
            self.find("no_reuse", when)
        return len(told) * self.size

    def due(self, request: Request) -> int:
        """How many blocks can be reused."""
        known = set(self.held.values())
        most = (len(request["tokens"]) - 1) // self.size
        ends = [(index + 1) * self.size for index in range(most)]
        return next((i for i, end in enumerate(ends) if prefix(request, end) not in known), most)

    def ttft_us(self, request: Request) -> int:
        """The time to first token, and nothing of the comparison: what an attacker sees."""
        told = self.call("match", request)
        num_reused = len(told) * self.size if type(told) is list else 0
        return FIXED_US + TOKEN_US * max(0, len(request["tokens"]) - num_reused)

    def call(self, method: str, *args: Any) -> Any:
        try:
            return self.session.call(method, list(args), self.serve)
        except Raised as error:
            self.found.append(Finding("raised", f"{error}, in {method}, {error.place}"))
            raise

    def find(self, kind: str, when: str = "") -> None:
        self.found.append(Finding(kind, when))

    def _fault(self, block: int, due: Prefix) -> str:
        held = self.held.get(block)
        if due in self.was.get(block, ()):
            return "evicted"
        if held is None or len(held[2]) < len(due[2]):
            return "uncomputed"
        if held[0] != due[0]:
            return "leak"
        return "adapter" if held[1] != due[1] else "wrong_tokens"


def prefix(request: Request, end: int) -> Prefix:
    return request["salt"], request["adapter"], tuple(request["tokens"][:end])
