"""Conversions that tests kill: how are they started, and what does one write that is left alone?"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.support import brand, tree_digest

Options = dict[str, tuple[list[object], ...]]
"""By kind of folder, the options of each conversion."""


class Conversions:
    """Of 600 pictures and of 41 clips, each with some options; and what they write where no test kills them."""

    def __init__(self, options: Options, pictures: Path, clips: Path, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._sources: dict[str, list[object]] = {
            "images": [pictures],
            "audio": [clips, "--transcripts", clips / "transcripts.tsv"],
        }
        self.undisturbed = cache(self._undisturbed)

    def command(self, kind: str, which: int, target: Path, jobs: int) -> list[object]:
        """The arguments of `brand`."""
        source, *more = self._sources[kind]
        return ["convert", kind, source, target, *more, *self._options[kind][which], "-j", jobs]

    def _undisturbed(self, kind: str, which: int) -> dict[str, str]:
        target = self._folder / f"{kind}-{which}"
        done = brand(*self.command(kind, which, target, 1))
        assert done.code == 0, done.err
        return tree_digest(target)
