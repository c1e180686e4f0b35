"""How each part is put into an engine: one function per part, and the reference where it is not.

Parts of the engine are put in whenever it is built; see `minserve.learn.serving.engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minserve.engine import Engine
from minserve.errors import BlockError, ConfigError, MinserveError
from minserve.execution.executor import StepPlan
from minserve.kv.prefix import PrefixCache
from minserve.learn.attention import OneByOne
from minserve.learn.parts_of_engine import Asking, OrderingPart
from minserve.learn.policies import PolicyPart
from minserve.learn.pool import for_engine
from minserve.learn.prefix import LeafFirstCache, LearnedPrefixCache, block_hashes
from minserve.learn.serving.pool import ServedPool
from minserve.learn.serving.shelf import Shelf
from minserve.scheduling.batching import Decision, Snapshot
from minserve.scheduling.ordering import Ordering
from minserve.scheduling.reservation import OnlineFirst
from minserve.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from minserve.learn.serving.engine import Settings
    from minserve.learn.serving.loops import Loops

POLICIES = ("static_batching", "dynamic_batching", "continuous_batching")
ENGINE_PARTS = (
    *("decode_loop", "engine_step", *POLICIES, "ordering"),
    *("block_pool", "paged_attention", "block_hashes", "prefix_cache"),
)
MAX_WAIT_S = 10.0
"""A policy that has everybody wait for longer has forgotten somebody."""


# -- batching policy


def newest_policy(shelf: Shelf) -> str | None:
    """Of the learner's batching policies that are installed, the one last kept."""
    mine = [name for name in POLICIES if shelf.is_mine(name)]

    def kept_ns(name: str) -> int:
        version = shelf.books[name].version
        return version.path.stat().st_mtime_ns if version else 0

    return max(mine, key=kept_ns, default=None)


def policy(shelf: Shelf, settings: Settings, block_size: int) -> Any:
    """The learner's policy with the server's limits, or the server's own."""
    name = settings.policy_part
    if not shelf.is_mine(name):
        return settings.policy()
    limits: dict[str, dict[str, Any]] = {
        "static_batching": {"batch_size": settings.max_running},
        "dynamic_batching": {"batch_size": settings.max_running, "max_wait_s": 0.05},
        "continuous_batching": {
            "token_budget": settings.token_budget,
            "max_running": settings.max_running,
        },
    }
    return ServedPolicy(shelf, name, block_size, limits[name])


class ServedPolicy(PolicyPart):
    """A `PolicyPart` that is counted for whom it runs."""

    def __init__(self, shelf: Shelf, name: str, block_size: int, settings: dict) -> None:
        target = shelf.books[name].target
        super().__init__(
            lambda view, **limits: shelf.guard.call(name, target, view, **limits),
            block_size,
            **settings,
        )
        self._shelf, self._name = shelf, name

    def decide(self, snapshot: Snapshot) -> Decision:
        """See `PolicyPart`. Raises `PartFailed`."""
        try:
            decision = super().decide(snapshot)
        except ConfigError as error:
            raise self._shelf.guard.failed(self._name, str(error)) from error
        for request, _ in decision.run:
            self._shelf.ledger.note(self._name, request.id)
        until_s = decision.wake_at_s
        if until_s is not None and not until_s <= snapshot.now_s + MAX_WAIT_S:
            raise self._shelf.guard.failed(self._name, f"it lets everybody wait until {until_s} s")
        return decision


def planned(
    shelf: Shelf, settings: Settings, scheduler: Scheduler, now_s: float
) -> StepPlan | None:
    """The scheduler's plan. A decision that it cannot carry out is the policy's failure."""
    try:
        return scheduler.plan(now_s)
    except (MinserveError, TypeError, ValueError) as error:
        if hasattr(error, "part") or not shelf.is_mine(settings.policy_part):
            raise
        raise shelf.guard.failed(settings.policy_part, str(error)) from error


# -- ordering


def ordering(shelf: Shelf, reference: Ordering) -> Ordering:
    """The learner's ordering, or `reference`; offline work stays behind all other."""
    return OnlineFirst(ServedOrdering(shelf) if shelf.is_mine("ordering") else reference)


class ServedOrdering(OrderingPart):
    """An `OrderingPart` whose keys are known to be comparable."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf.books["ordering"].target)
        self._shelf, self._last = shelf, None

    def key(self, request: Any, now_s: float) -> Any:
        """See `OrderingPart`. Raises `PartFailed`."""
        asking = Asking(request.id, request.arrival_s, request.priority, request.deadline_s)
        with self._shelf.ledger.during(request.id):
            key = self._shelf.call("ordering", self.function, asking, now_s)
        is_key: bool
        try:
            is_key = not key < (key if self._last is None else self._last) or True
            self._last = key
        except TypeError:
            is_key = False
        if not is_key or key != key:
            raise self._shelf.guard.failed("ordering", f"{key!r:.60} cannot be sorted by")
        return key


# -- block pool and prefix cache


def block_pool(shelf: Shelf, num_blocks: int, block_size: int) -> ServedPool | None:
    """The learner's pool, or None for the engine's own."""
    if not shelf.is_mine("block_pool"):
        return None
    cls = for_engine(shelf.books["block_pool"].target)
    mine = shelf.make("block_pool", num_blocks, block_size, target=cls)
    return ServedPool(
        mine, num_blocks, block_size, lambda what: shelf.guard.failed("block_pool", what)
    )


def prefix_cache(shelf: Shelf, engine: Engine) -> PrefixCache | None:
    """The learner's hashes and cache beside the engine's book, or the engine's own cache."""
    if not (shelf.is_mine("block_hashes") or shelf.is_mine("prefix_cache")):
        return engine.prefix_cache
    return ServedPrefixCache(shelf, engine)


class ServedPrefixCache(LearnedPrefixCache):
    """A `LearnedPrefixCache` whose answers are checked before the engine relies on them."""

    def __init__(self, shelf: Shelf, engine: Engine) -> None:
        self._shelf = shelf
        super().__init__(
            engine.pool,
            engine.executor.cache_namespace,
            (lambda: shelf.make("prefix_cache"))
            if shelf.is_mine("prefix_cache")
            else LeafFirstCache,
            shelf.function("block_hashes") if shelf.is_mine("block_hashes") else block_hashes,
        )

    def hashes(self, token_ids: Sequence[int], parent: bytes) -> list[bytes]:
        found = self._hash_blocks(token_ids, self.pool.block_size, parent)
        wanted = len(token_ids) // self.pool.block_size
        is_list = isinstance(found, list) and len(found) == wanted
        if not is_list or not all(isinstance(key, bytes) for key in found):
            what = f"{wanted} full blocks need as many keys of bytes, not {found!r:.60}"
            raise self._shelf.guard.failed("block_hashes", what)
        return found

    def match(
        self, token_ids: Sequence[int], hashes: Sequence[bytes], root: bytes = b""
    ) -> list[int]:
        try:
            return super().match(token_ids, hashes, root)
        except TypeError as error:
            raise self._shelf.guard.failed("prefix_cache", f"match: {error}") from error

    def evict(self) -> int | None:
        try:
            block = super().evict()
        except BlockError as error:
            raise self._shelf.guard.failed("prefix_cache", str(error)) from error
        if block is None and self.pool.num_cached:
            what = f"it evicts nothing, and {self.pool.num_cached} blocks are cached and not used"
            raise self._shelf.guard.failed("prefix_cache", what)
        return block


# -- the model's side


def attention_of(executor: Any) -> Any:
    """An executor's own attention and CUDA graphs; None where nothing is computed."""
    decoder = getattr(executor, "decoder", None)
    return decoder and (decoder.attention, executor.graphs)


def paged_attention(shelf: Shelf, executor: Any, own: Any) -> None:
    """Have every layer attend by the learner's function, one token after another: right, and slow.

    A graph recorded on a GPU would go past it, so none is used then.
    """
    if own is None:
        return
    is_mine = shelf.is_mine("paged_attention")
    if is_mine and any(window is not None for window in executor.config.windows):
        book = shelf.books["paged_attention"]
        book.target, book.why = None, "this model's layers look at a window, which it does not know"
        is_mine = False
    executor.decoder.attention = ServedAttention(shelf) if is_mine else own[0]
    executor.graphs = None if is_mine else own[1]


class ServedAttention(OneByOne):
    """`OneByOne`, counted for the request whose token it is, each answer's shape checked."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf.books["paged_attention"].target)
        self._shelf = shelf

    def lay_out(
        self, rows: Sequence[Any], block_size: int, device: str, window: int | None = None
    ) -> list:
        """As `OneByOne`, each with the request's id."""
        layout = super().lay_out(rows, block_size, device, window)
        ids = [row.request_id for row in rows for _ in row.token_ids]
        return list(zip(ids, layout, strict=True))

    def attend(self, queries: Any, keys: Any, values: Any, layout: list) -> Any:
        """See `minserve.models.attention.Attention.attend`. Raises `PartFailed`."""
        import torch

        found = torch.empty_like(queries)
        for index, (request_id, (table, num_context)) in enumerate(layout):
            self._shelf.ledger.note("paged_attention", request_id)
            one = self._shelf.guard.call(
                "paged_attention", self.attend_one, queries[index], keys, values, table, num_context
            )
            if getattr(one, "shape", None) != queries[index].shape:
                what = f"a query of {tuple(queries[index].shape)} gives {one!r:.60}"
                raise self._shelf.guard.failed("paged_attention", what)
            found[index] = one
        if queries.isfinite().all() and not found.isfinite().all():
            raise self._shelf.guard.failed("paged_attention", "its answer is not finite (NaN)")
        return found


def decode_loop(shelf: Shelf, executor: Any, loops: Loops) -> None:
    """Have plain greedy tokens chosen by the learner's loops."""
    executor.sampler = loops if shelf.is_mine("decode_loop") else None
