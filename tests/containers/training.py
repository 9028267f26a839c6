"""README's lines, as a user runs them, and what else a training does: resume, a cache, a direct read.

    python -m tests.containers.training [CACHE]

The folder has `photos.brand`. Prints a JSON object: for each step a digest of what it delivered, or its error.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from brand.errors import BrandError

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> list[str]:
    """The Python blocks of README's quick start."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


class _Steps:
    """The steps, in the order in which they run; README's names are global, as in a script."""

    def __init__(self, cache: str) -> None:
        self.cache = cache
        self.names: dict[str, Any] = {"__name__": "__main__", "seen": self.seen, "print": lambda *_: None}
        self.digest = xxhash.xxh3_128()

    def seen(self, images: Any, labels: Any) -> None:
        self.digest.update(images.numpy().tobytes())
        self.digest.update(labels.numpy().tobytes())

    def readme(self, number: int) -> None:
        """Run a block; its training step, the three points, takes the batch."""
        code, count = re.subn(r"^( +)\.\.\. *(#.*)?$", r"\1seen(images, labels)", blocks()[number], flags=re.MULTILINE)
        assert count == 1
        exec(compile(code, f"README.md, block {number}", "exec"), self.names)

    def brand_loader(self) -> None:
        self.readme(0)

    def data_loader(self) -> None:
        self.readme(1)

    def resume(self) -> None:
        from brand import BrandLoader, BrandSampler

        ds = self.names["ds"]
        loader = BrandLoader(ds, batch_size=4, sampler=BrandSampler(ds, seed=5))
        batches = iter(loader)
        for _ in range(3):
            self.seen(*next(batches))
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
        loader = BrandLoader(ds, batch_size=4, sampler=BrandSampler(ds, seed=5))
        loader.load_state_dict(state)
        for batch in loader:
            self.seen(*batch)

    def direct(self) -> None:
        for n in (3, 30, 17):
            image, label = self.names["ds"][n]
            self.digest.update(image.tobytes() + bytes([label]))

    def cached(self) -> None:
        from brand import BrandDataset, BrandLoader, DecodeImage

        fields = ("image", "label")
        for states in (("filling", "full"), ("filling", "full", "reads only")):  # the first server may still write it
            decode = {"image": DecodeImage(size=(64, 64))}
            ds = BrandDataset("photos.brand", fields=fields, decode=decode, memory=0.5, cache=self.cache or None)
            for batch in BrandLoader(ds, batch_size=8):
                self.seen(*batch)
            if self.cache:
                state = ds.stats()["cache"]
                assert state is not None, "no cache"
                assert state["state"] in states, state["state"]
            del ds


def _taken(digest: Any, step: Callable[[], None]) -> dict[str, str]:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - is told
        return {"error": f"{type(error).__name__}: {error}"}
    return {"digest": digest.hexdigest()}


def facts() -> dict[str, bool]:
    """What this process may do, which `brand doctor` judges, too."""
    from brand.usercache import own_folder

    def works(call: Callable[[], object]) -> bool:
        try:
            call()
        except (OSError, BrandError):
            return False
        return True

    return {
        "process 1": os.getpid() == 1,
        "kernel": works(lambda: os.close(os.pidfd_open(os.getpid()))),
        "shared memory": works(lambda: os.close(os.memfd_create("rehearsal"))),
        "/proc": Path("/proc/self").exists(),
        "cache": works(lambda: own_folder("rehearsals", "folder")),
        "TMPDIR": works(tempfile.gettempdir),
    }


def main() -> None:
    """Run all steps; a step after one that failed runs, too."""
    steps = _Steps(sys.argv[1] if len(sys.argv) > 1 else "")
    found: dict[str, Any] = {}
    for step in (steps.brand_loader, steps.data_loader, steps.resume, steps.direct, steps.cached):
        steps.digest = xxhash.xxh3_128()
        found[step.__name__] = _taken(steps.digest, step)
        if step == steps.brand_loader and "ds" not in steps.names:
            break
    found["facts"] = facts()
    stats = steps.names["ds"].stats() if "ds" in steps.names and "digest" in found["brand_loader"] else {}
    found["problems"] = stats.get("problems")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
