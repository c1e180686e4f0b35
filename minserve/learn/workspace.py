"""The learner's workspace: every version of a part that kept all rules, and what the engine runs.

    MINSERVE_HOME/parts/block_pool/versions/0001-9f86d081.py     never changed once written
                                  /chosen.json                   {"use": "mine", "version": 1}

Files are UTF-8 and replaced atomically, so a crash or a second kernel leaves either the old or the
new content. Nothing is ever deleted.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from minserve.errors import ConfigError
from minserve.home import home

MINE, REFERENCE = "mine", "reference"


@dataclass(frozen=True, slots=True)
class Version:
    """One kept version of a part; `name` is that of the function or class in it."""

    number: int
    name: str
    text: str
    path: Path


class Workspace:
    """Reads and writes the versions of one part."""

    def __init__(self, part: str, root: Path | None = None) -> None:
        self.part = part
        self.folder = (root or home() / "parts") / part

    def versions(self) -> list[Version]:
        """All versions, oldest first. A file that cannot be read is passed over."""
        found = []
        for path in sorted((self.folder / "versions").glob("[0-9]*-*.py")):
            try:
                head, text = path.read_text(encoding="utf-8").split("\n", 1)
                name = head.removeprefix("# part: ").split()[-1]
            except (OSError, ValueError, IndexError):
                continue
            found.append(Version(int(path.name.split("-")[0]), name, text, path))
        return found

    def keep(self, name: str, text: str) -> Version:
        """Keep `text`, unless it is kept already, and choose it. Raises `OSError`."""
        digest = blake2b(text.encode(), digest_size=4).hexdigest()
        versions = self.versions()
        same = [v for v in versions if v.path.stem.endswith(digest) and v.text == text]
        if same:
            version = same[0]
        else:
            number = max((v.number for v in versions), default=0) + 1
            path = self.folder / "versions" / f"{number:04}-{digest}.py"
            write_atomically(path, f"# part: {self.part} {name}\n{text}")
            version = Version(number, name, text, path)
        self._choose(version=version.number)
        return version

    def current(self) -> Version | None:
        """The version last kept or restored; None if there is none."""
        versions = self.versions()
        number = self._chosen().get("version")
        return next((v for v in versions if v.number == number), versions[-1] if versions else None)

    def restore(self, number: int) -> Version:
        """Make an earlier version the current one. Raises `ConfigError` if it does not exist."""
        for version in self.versions():
            if version.number == number:
                self._choose(version=number)
                return version
        raise ConfigError(
            f"there is no version {number} of {self.part}",
            f"kept are {[v.number for v in self.versions()] or 'none'}",
        )

    @property
    def use(self) -> str:
        """`mine` or `reference`: what the engine runs where nothing else is asked for."""
        return self._chosen().get("use", REFERENCE)

    @use.setter
    def use(self, which: str) -> None:
        self._choose(use=which)

    def _chosen(self) -> dict:
        try:
            chosen = json.loads((self.folder / "chosen.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return chosen if isinstance(chosen, dict) else {}

    def _choose(self, **changes: object) -> None:
        chosen = {**self._chosen(), **changes}
        write_atomically(self.folder / "chosen.json", json.dumps(chosen) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text so that a reader finds the old content or the new. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
