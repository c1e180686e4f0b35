"""Right parts, each written in two ways, and wrong ones: the first right part with one mistake.

Each part's are in the module of its name. `RIGHT` is (name, {way of writing: source}). `WRONG` has
of each mistake what is replaced in the first right part, by what, the rule that must catch it
first, and a piece of what the learner then reads.
"""

from importlib import import_module

from minserve.learn.parts import SLOTS

_OF_PART = {part: import_module(f"variants.{part}") for part in SLOTS}
RIGHT = {part: module.RIGHT for part, module in _OF_PART.items()}
WRONG = {part: module.WRONG for part, module in _OF_PART.items()}
