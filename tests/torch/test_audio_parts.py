"""Random parts of recordings: the frames of the file, the same for a sample in any thread, worker and restart."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from torch.utils.data import DataLoader

from brand import DecodeAudio, pack
from brand.errors import UsageError
from brand.formats.crops import random_numbers
from brand.formats.preparation import for_server, from_json, random_part
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.orders.models import chi_square

RATE, FRAMES, SECONDS = 8000, 4000, 0.125
HOW = DecodeAudio(seconds=SECONDS, offset="random")


def recording(frames: int, kind: str = "WAV", rate: int = RATE) -> bytes:
    """A file in which each frame is its own number."""
    file = io.BytesIO()
    soundfile.write(file, np.arange(frames, dtype=np.int16), rate, format=kind, subtype="PCM_16")
    return file.getvalue()


def first_frame(samples: Any) -> int:
    """The frame of the file with which a part begins. The others follow it."""
    numbers = np.round(np.asarray(samples) * 2**15).astype(int)
    assert (np.diff(numbers) == 1).all()
    return int(numbers[0])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("parts") / "set.brand"
    samples = ({"audio": recording(FRAMES, ("WAV", "FLAC")[n % 2]), "n": n} for n in range(120))
    pack(samples, target, {"audio": "audio", "n": "int"}, chunk_size=16)
    return target


def opened(path: Path, **more: Any) -> BrandDataset:
    return BrandDataset(path, fields=("n", "audio"), decode={"audio": HOW}, **more)


def firsts(batches: Any) -> dict[int, int]:
    """The first frame of the part of each sample."""
    return {int(n): first_frame(each) for numbers, audio in batches for n, each in zip(numbers, audio, strict=True)}


def test_a_seed_chooses_the_part() -> None:
    """Any part of the file, each equally often; the whole file if it is no longer."""
    for kind in ("WAV", "FLAC"):
        data = recording(1010, kind)
        found = np.array([first_frame(random_part(HOW, data, seed)) for seed in range(440)])
        assert set(found.tolist()) == set(range(11))
        assert chi_square(np.bincount(found, minlength=11)) < 29.6  # 1 in 1,000, with ten degrees of freedom
        assert found[7] == int(next(random_numbers(7)) * 11)
        for frames in (1, 999, 1000):
            assert (
                random_part(HOW, recording(frames, kind), 3).tolist() == DecodeAudio()(recording(frames, kind)).tolist()
            )
    assert len(random_part(DecodeAudio(rate=4000, seconds=SECONDS, offset="random"), recording(FRAMES), 1)) == 500


def test_all_ways_give_the_same(path: Path) -> None:
    """Threads, processes of PyTorch, a data server that decodes, and the rest of an epoch after a state."""
    data = opened(path)
    loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=1))
    one = firsts(loader)
    assert len(one) == 120
    assert firsts(BrandLoader(data, 7, sampler=BrandSampler(data, seed=1), num_workers=3)) == one
    assert firsts(DataLoader(data, 16, sampler=BrandSampler(data, seed=1), num_workers=2)) == one
    with running_server(path, memory=0.5) as server:
        there = opened(path, server=server.address)
        assert firsts(BrandLoader(there, 16, sampler=BrandSampler(there, seed=1))) == one
    loader.set_epoch(0)
    batches = iter(loader)
    some = firsts([next(batches), next(batches)])
    later = BrandLoader(data, 10, sampler=BrandSampler(data, seed=1))
    later.load_state_dict(loader.state_dict())
    assert some | firsts(later) == one
    loader.set_epoch(1)
    other = firsts(loader)
    assert sum(other[n] != one[n] for n in one) > 110
    assert len(firsts(DataLoader(data, 16))) == 120  # by random access


def test_wrong_parts_are_refused() -> None:
    """By what is missing. A data server gets none."""
    for options, why in (
        ({"offset": "random"}, r"offset='random' needs seconds="),
        ({"offset": "middle", "seconds": 1.0}, "seconds are 0 or more"),
        ({"offset": None, "seconds": 1.0}, "offset is 0 or more, or 'random'"),
    ):
        with pytest.raises(UsageError, match=why):
            DecodeAudio(**options)
    with pytest.raises(UsageError, match="a BrandDataset chooses the part"):
        HOW(recording(10))
    with pytest.raises(UsageError, match="decodes nothing that is random"):
        from_json({"codec": "audio", "seconds": 1.0, "offset": "random"})


def test_a_server_decodes_what_is_not_random(path: Path) -> None:
    schema = opened(path)._source.data.header.schema
    assert for_server({"audio": HOW}, schema) == {}
    assert set(for_server({"audio": DecodeAudio(seconds=SECONDS, offset=0.1)}, schema)) == {"audio"}
