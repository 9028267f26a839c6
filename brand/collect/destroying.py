"""How are versions removed, with the files that only they need?

`forget_before` does it for `compact --forget`. For `redact`, an intent in `staging/redact.json` is written before its
version is published, and each later writer carries it out (`finish_destroying`): so a kill between the two leaves no
bytes that a report calls destroyed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from brand.errors import LayoutError
from brand.formats.publish import publish_bytes, sync_folder
from brand.formats.version import Version, part_name, read_version, version_name
from brand.storage.io.location import numbers

INTENT_NAME: Final = "staging/redact.json"


def forget_before(folder: Path, version: Version) -> int:
    """Remove all older versions, and the files that only they name.

    Returns the bytes freed. The caller has the lock.
    """
    older = [number for number in numbers(folder) if number < version.number]
    return _remove(folder, [read_version(folder, number) for number in older], [version])


def write_intent(folder: Path, report: dict[str, Any], versions: Sequence[int], to: Path) -> None:
    """Record the versions to remove after the version of the report is published."""
    intent = {"report": report, "version": report["version"], "versions": list(versions), "to": str(to)}
    publish_bytes(folder / INTENT_NAME, json.dumps(intent, ensure_ascii=False).encode())


def finish_destroying(folder: Path) -> dict[str, Any] | None:
    """Carry out an intent, if there is one. Returns the report of the redaction. The caller has the lock.

    If the version of the redaction was not published, nothing happened, and the intent is removed.
    """
    path = folder / INTENT_NAME
    if not path.exists():
        return None
    try:
        intent = json.loads(path.read_bytes())
        version, old, to = int(intent["version"]), set(map(int, intent["versions"])), Path(intent["to"])
        report = dict(intent["report"])
    except (ValueError, KeyError, TypeError) as error:
        raise LayoutError(f"the intent of a redaction is damaged: {error!r}", path=path) from error
    known = numbers(folder)
    if not known or known[-1] < version:
        path.unlink()
        return None
    versions = [read_version(folder, number) for number in known]
    _remove(folder, [each for each in versions if each.number in old], [v for v in versions if v.number not in old])
    for each in report["parts"]:  # if an earlier attempt was killed after the versions
        shutil.rmtree(folder / part_name(each["destroyed"]), ignore_errors=True)
    report |= {"finished": True}
    publish_bytes(to, json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n")
    path.unlink()
    return report


def _remove(folder: Path, old: Sequence[Version], left: Sequence[Version]) -> int:
    """Remove versions, then the segments and lists that no remaining version names. Returns their size in bytes."""
    parts = {part.id for version in left for part in version.parts}
    lists = {listed.name for version in left for listed in version.lists}
    for version in old:
        (folder / version_name(version.number)).unlink()
    sync_folder(folder / "versions")
    freed = 0
    for name in sorted({part.name for version in old for part in version.parts if part.id not in parts and part.id}):
        freed += sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
        shutil.rmtree(folder / name)
    for name in sorted({listed.name for version in old for listed in version.lists} - lists):
        freed += (folder / name).stat().st_size
        (folder / name).unlink()
    return freed
