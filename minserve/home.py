"""Where minserve keeps what it downloads and what a learner writes: never in package folders."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """The folder named by MINSERVE_HOME, or the platform's user data folder for minserve.

    Not created here: whoever writes into it creates what it needs.
    """
    chosen = os.environ.get("MINSERVE_HOME")
    if chosen:
        return Path(chosen).expanduser()
    return Path(platformdirs.user_data_dir("minserve", appauthor=False))


def models_home() -> Path:
    """Where fetched and converted models live."""
    return home() / "models"
