"""The simulated reads of a sampler with a subset or weights are those of a real server."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.long_tail import make
from brand import BrandDataset, BrandLoader, BrandSampler
from brand.node.setup.choose import DEFAULT_DEPTH
from brand.simulate.pace import Machine
from brand.simulate.storages import BUILT_IN
from brand.simulate.whatif import Case, Prediction, answer, data_of
from brand.storage.dataset.dataset import StoredDataSet
from tests.support import wait_until
from tests.torch.support import Openings

SAMPLES, SIZE, EPOCHS, BATCH = 20_000, 5_000, 3, 256
STEP_S = 0.01
NEAR_BYTES, NEAR_READS = 0.02, 0.03
MOVED = 0.06
"""The ends of reads decide which epoch reads a sample that two orders need. So a busy machine moves some from one epoch
to the next, and the sum of all epochs is the same.
"""


@pytest.fixture(scope="module")
def long_tail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand classes, whose sizes follow Zipf's law."""
    folder = tmp_path_factory.mktemp("drawing") / "long-tail.brand"
    make(folder, SAMPLES, SIZE)
    return folder


def predicted(path: Path, memory: float, **sampler: Any) -> Prediction:
    """The prediction of a training alone."""
    case = Case(Machine(BUILT_IN["nas"]), memory, batch=BATCH, epochs=EPOCHS, **sampler)
    return answer(data_of(StoredDataSet(path)), case)


def measured(data: BrandDataset, **sampler: Any) -> list[list[int]]:
    """Reads, their bytes, and direct reads of each epoch, from its beginning until the server has read ahead."""
    loader, counters = BrandLoader(data, BATCH, sampler=BrandSampler(data, **sampler)), [[0, 0, 0]]

    def count() -> list[int]:
        stats = data.stats()
        return [stats["reading"], stats["reads"], stats["read_bytes"], stats["direct"]]

    def rests() -> bool:
        before = count()
        return before[0] == 0 and count() == before

    for _ in range(EPOCHS):
        for _ in loader:
            time.sleep(STEP_S)  # a training that is slower than the storage
        wait_until(rests, "the server has read ahead")
        counters.append(count()[1:])
    found: list[list[int]] = np.diff(counters, axis=0).tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "sampler"),
    [
        (0.25, {"weights": "balanced"}),
        (0.5, {"weights": "balanced"}),
        (0.25, {"weights": "balanced", "subset": "label < 300", "num_samples": 9_000}),
        (0.5, {"weights": np.arange(SAMPLES) % 7}),
        (0.25, {"subset": "label < 10"}),
    ],
    ids=["a quarter", "all repeats", "of a subset", "by sample", "subset"],
)
def test_a_real_server_reads_what_is_predicted(long_tail: Path, memory: float, sampler: dict[str, Any]) -> None:
    """In each epoch. Half of the memory holds all samples that repeat in an epoch of balanced classes."""
    found = predicted(long_tail, memory, **sampler)
    with closing(Openings()) as opened:
        epochs = measured(opened(long_tail, memory=memory, fields=("index", "label")), **sampler)
    for counts, (reads, read_bytes, _) in zip(found.counts, epochs, strict=True):
        assert counts.reads == pytest.approx(reads, rel=MOVED, abs=DEFAULT_DEPTH)
        assert counts.read_bytes == pytest.approx(read_bytes, rel=MOVED, abs=DEFAULT_DEPTH * read_bytes / reads)
    reads, read_bytes, direct = np.sum(epochs, axis=0).tolist()
    assert sum(counts.reads for counts in found.counts) == pytest.approx(reads, rel=NEAR_READS, abs=DEFAULT_DEPTH)
    assert sum(counts.read_bytes for counts in found.counts) == pytest.approx(read_bytes, rel=NEAR_BYTES)
    assert sum(counts.direct for counts in found.counts) == direct == 0
