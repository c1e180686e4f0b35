"""What a lesson uses: parts to write, pictures to look at, experiments to run.

Importing it takes neither torch nor matplotlib; those load when a cell first needs them.
"""

from __future__ import annotations

from minserve.learn.parts import get, hint, part, parts_status, restore, use
from minserve.learn.pool import PoolBase

__all__ = ["PoolBase", "get", "hint", "part", "parts_status", "restore", "use"]
