"""What a lesson uses: parts to write, pictures to look at, experiments to run.

Importing it takes neither torch nor matplotlib; those load when a cell first needs them.
"""

from __future__ import annotations

import os

# NOTE: must stand before torch loads; see minserve/cli/main.py.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

from minserve.learn.parts import get, hint, part, parts_status, restore, use
from minserve.learn.pool import PoolBase
from minserve.learn.quiz import choose, predicted, solved

__all__ = [
    "PoolBase",
    "choose",
    "get",
    "hint",
    "part",
    "parts_status",
    "predicted",
    "restore",
    "solved",
    "use",
]
