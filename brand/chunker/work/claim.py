"""Which conversion has a target that is not finished? A file in the work folder, the *claim*, names it.

A claim names the data set, the source as it was found, and the versions of the programs that write the bytes. Another
version may write other bytes for the same samples, or put them into another order. So all runs and all machines of a
conversion need the same versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zstandard

from brand.errors import TargetExistsError
from brand.formats.constants import SHARED_PLAN_NAME
from brand.version import __version__

CLAIM_NAME: Final = "plan.json"


def versions() -> dict[str, str]:
    """Return the versions that determine the bytes, in addition to source and options: name -> version."""
    zstd = ".".join(map(str, zstandard.ZSTD_VERSION))
    return {"Brand": __version__, "zstandard": f"{zstandard.__version__} with zstd {zstd}"}


@dataclass(frozen=True)
class Claim:
    """The conversion that has a target."""

    data_set_id: bytes
    source: str
    """Fingerprint of the source, with the dates of its files."""
    made_with: Mapping[str, str] = field(default_factory=versions)

    def pack(self) -> bytes:
        """Return the contents of the file: equal bytes for equal conversions."""
        facts = {"id": self.data_set_id.hex(), "source": self.source, "made_with": dict(self.made_with)}
        return json.dumps(facts, sort_keys=True).encode()

    def check_versions(self, name: str) -> None:
        """Raise `TargetExistsError` if the conversion into `name` was begun with other versions."""
        here = versions()
        if dict(self.made_with) != here:
            raise TargetExistsError(
                f"{name} holds an unfinished conversion that was begun with {_listed(self.made_with)}. Installed are"
                f" {_listed(here)}, which may write other bytes. Use the same versions, or remove {name} to start again"
            )


def read_claim(folder: Path) -> Claim | None:
    """Return the claim in a work folder; None if there is none.

    A claim that cannot be read counts as another conversion's.
    """
    for path in (folder / SHARED_PLAN_NAME / CLAIM_NAME, folder / CLAIM_NAME):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        try:
            value = json.loads(data)
            told = {str(what): str(version) for what, version in value.get("made_with", {}).items()}
            return Claim(bytes.fromhex(value["id"]), str(value["source"]), told)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return Claim(b"", "", versions())
    return None


def check_claim(folder: Path, mine: Claim, name: str) -> bool:
    """Return whether the work folder has this claim already. Raises `TargetExistsError` if it has another one."""
    there = read_claim(folder)
    if there is None:
        return False
    there.check_versions(name)
    if there != mine:
        raise TargetExistsError(
            f"{name} holds an unfinished conversion of another source or with other options."
            f" Run that command again to finish it, or remove {name} to start again"
        )
    return True


def _listed(made_with: Mapping[str, str]) -> str:
    return " and ".join(f"{what} {version}" for what, version in sorted(made_with.items())) or "an older Brand"
