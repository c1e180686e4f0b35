"""Variants of `overload_ladder`; see `variants` for their form."""

LADDER = """
    from minserve.learn.admissions import LadderBase
    from minserve.scheduling.overload import LadderState, Rung

    class Rungs(LadderBase):
        def called_for(self, signals, scale=1.0):
            counts = []
            for name, levels in self.levels.items():
                value = getattr(signals, name)
                counts.append(sum(value >= scale * level for level in levels))
            return max(counts)

        def next(self, state, signals, now_s):
            called = self.called_for(signals)
            if called > state.rung:
                return LadderState(Rung(called))
            if self.called_for(signals, self.release) >= state.rung:
                return LadderState(state.rung)
            if state.calm_since_s is None:
                return LadderState(state.rung, now_s)
            if now_s - state.calm_since_s < self.hold_s:
                return state
            return LadderState(Rung(state.rung - 1), now_s)
"""

LADDER_DOWNWARDS = """
    from minserve.learn.admissions import LadderBase
    from minserve.scheduling.overload import LadderState, Rung

    class Rungs(LadderBase):
        def called_for(self, signals, scale=1.0):
            for rung in (5, 4, 3, 2, 1):
                for name in self.levels:
                    if getattr(signals, name) >= self.levels[name][rung - 1] * scale:
                        return rung
            return 0

        def next(self, state, signals, now_s):
            up = Rung(max(self.called_for(signals), 0))
            if up > state.rung:
                return LadderState(up, None)
            is_calm = self.called_for(signals, self.release) < state.rung
            since = state.calm_since_s
            if not is_calm:
                since, rung = None, state.rung
            elif since is None:
                since, rung = now_s, state.rung
            elif now_s >= since + self.hold_s:
                since, rung = now_s, Rung(state.rung - 1)
            else:
                rung = state.rung
            return LadderState(rung, since)
"""

RIGHT = ("Rungs", {"counted": LADDER, "downwards": LADDER_DOWNWARDS})
WRONG = {
    "never normal": (
        "return max(counts)",
        "return max(1, *counts)",
        "calm_is_normal",
        "nothing",
    ),
    "rounds the level": (
        "value >= scale * level",
        "round(value) >= scale * level",
        "calm_is_normal",
        "the first level is 2",
    ),
    "above the level": (
        "value >= scale * level",
        "value > scale * level",
        "each_level_is_a_rung",
        "2 s of waiting work reach level 1",
    ),
    "one rung is enough": (
        "return max(counts)",
        "return min(1, max(counts))",
        "each_level_is_a_rung",
        "4 s of waiting work reach level 2",
    ),
    "backlog only": (
        "getattr(signals, name)",
        'getattr(signals, name) if name == "drain_s" else 0.0',
        "every_signal_counts",
        "queue_age_s alone",
    ),
    "adds them up": (
        "return max(counts)",
        "return min(5, sum(counts))",
        "highest_call_counts",
        "the signals call for 1, 3 and 2",
    ),
    "ignores the scale": (
        "scale * level",
        "level",
        "scale",
        "more than 1.6",
    ),
    "one rung up": (
        "LadderState(Rung(called))",
        "LadderState(Rung(state.rung + 1))",
        "climbs_at_once",
        "which calls for rung 3",
    ),
    "down at once": (
        "return LadderState(state.rung, now_s)",
        "return LadderState(Rung(state.rung - 1), now_s)",
        "holds",
        "calm begins at 10",
    ),
    "a short calm": (
        "self.hold_s",
        "self.hold_s / 2",
        "holds",
        "calm has lasted 1.9 s",
    ),
    "never down": (
        "return LadderState(Rung(state.rung - 1), now_s)",
        "return state",
        "holds",
        "calm has lasted 2 s",
    ),
    "all the way down": (
        "LadderState(Rung(state.rung - 1), now_s)",
        "LadderState(Rung(self.called_for(signals)), now_s) if state.rung == 1 else "
        "LadderState(Rung(state.rung - 1), now_s - 1)",
        "one_rung_at_a_time",
        "each 2 s of calm",
    ),
    "lets go where it took hold": (
        "self.called_for(signals, self.release)",
        "self.called_for(signals)",
        "does_not_flutter",
        "above 80 % of it",
    ),
    "remembers an old calm": (
        "return LadderState(state.rung)\n",
        "return state\n",
        "calm_starts_over",
        "calm begins anew, at 12.5",
    ),
    "returns a number": (
        "return LadderState(Rung(called))",
        "return called",
        "climbs_at_once",
        "next returns a LadderState",
    ),
}
