"""`brand profile URL`: what it will cost is said before and kept, and the profile is that of the whole store."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.errors import StorageError
from brand.storage.io.location import located
from brand.storage.profile import probe
from brand.storage.profile.probe import MOST_STORE_BYTES, STORE_DEPTHS, STORE_SIZES, StoreProbe, _store_reads_of
from brand.storage.profile.profile import Profile, is_assumed, load_profile
from brand.storage.profile.ranges import cells_that_fit
from brand.stores import cloud
from tests.shop import SPEECHES, Shop, shop
from tests.support import brand
from tests.tools.objects import Busy, Expired, Fault, Faults

pytestmark = pytest.mark.slow

KIB = 1024


@pytest.fixture(params=SPEECHES)
def any_shop(
    request: pytest.FixtureRequest, photos_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """The photos in each kind of store."""
    with shop(request.param, tmp_path, monkeypatch) as opened:
        shutil.copytree(photos_set, opened.folder())
        yield opened


@pytest.fixture
def s3(photos_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The photos in S3."""
    with shop("s3", tmp_path, monkeypatch) as opened:
        shutil.copytree(photos_set, opened.folder())
        yield opened


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small reads, so that a small real data set is enough."""
    monkeypatch.setattr(probe, "STORE_SIZES", (4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB))
    monkeypatch.setattr(probe, "STORE_DEPTHS", (1, 2, 4))
    monkeypatch.setattr(probe, "LEAST_BYTES", 500_000)
    monkeypatch.setattr(probe, "LARGE", 32 * KIB)


def test_a_measurement_costs_little_whatever_is_measured() -> None:
    """A few thousand requests and a few GB; every size and number in flight is there, as far as memory allows."""
    cells = cells_that_fit([1 << 45], STORE_SIZES, STORE_DEPTHS, MOST_STORE_BYTES)
    assert {cell.size for cell in cells} == set(STORE_SIZES) == {64 * KIB << power for power in range(9)}
    assert {cell.depth for cell in cells} == set(STORE_DEPTHS) == {1, 2, 4, 8, 16, 32, 64}
    assert sum(map(_store_reads_of, cells)) < 5_000
    assert sum(cell.size * _store_reads_of(cell) for cell in cells) < 3.5e9
    for cell in cells:
        assert _store_reads_of(cell) >= cell.least
        assert _store_reads_of(cell) % cell.depth == 0


@pytest.mark.usefixtures("small")
def test_what_it_costs_is_what_was_said(any_shop: Shop) -> None:
    """Or a bit less, where the ranges of a visit do not all fit into the data set. The profile is the whole store's."""
    told = brand("profile", any_shop.url(), "--seconds", 600)
    assert told.code == 0, told.err
    asked = [request for request in any_shop.store.requests if "/chunks/" in request.key]
    root = any_shop.url().removesuffix("/bucket/set.brand" if any_shop.speech == "http" else "/set.brand")
    size = f"{sum(request.sent for request in asked) / 1e6:.1f} MB"
    most = re.match(rf"This asks {re.escape(root)} for at most (\d+) requests and (\d\.\d) MB\n", told.err)
    assert most is not None, told.err
    assert 0.8 * int(most[1]) < len(asked) <= int(most[1])
    assert f"It took {len(asked):,} requests and {size}\n" in told.out
    assert f"Data set {any_shop.url()} (mean sample 25.3 kB): stripes of " in told.out
    assert f"Stored for {root} in " in told.out
    found = load_profile(f"{root}/bucket/another")
    assert found is not None
    assert not is_assumed(found)
    assert (found.sizes, found.depths) == (probe.STORE_SIZES, probe.STORE_DEPTHS)
    assert all(speed > 0 for row in found.bytes_per_s for speed in row)
    assert set(any_shop.asked()) == {"GET"}


@pytest.mark.usefixtures("small")
def test_as_json_it_is_one_document(s3: Shop) -> None:
    """With what it took; nothing is stored in a dry run."""
    told = brand("profile", s3.url(), "--json", "--dry-run")
    assert told.err == ""
    facts = told.json
    assert facts["path"] == s3.url()
    assert facts["stored"] is None
    assert Profile.from_json(facts).device == "s3://bucket"
    assert facts["reads"] == len(s3.asked("/chunks/"))
    assert facts["read_bytes"] == sum(request.sent for request in s3.store.requests if "/chunks/" in request.key)
    found = load_profile(s3.url())
    assert found is not None
    assert is_assumed(found)


@pytest.mark.usefixtures("small")
def test_time_that_is_over_ends_it(s3: Shop) -> None:
    """Before all that it may cost; what it has measured counts."""
    measuring = StoreProbe(located(s3.url()))
    with pytest.raises(StorageError, match="too slow to be measured in 0 s"):
        measuring.measure(seconds=0)
    assert len(s3.asked("/chunks/")) < measuring.requests


def test_too_little_is_not_measured(s3: Shop) -> None:
    """Wrong use, before a chunk is read."""
    told = brand("profile", s3.url())
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith(f"brand: {s3.url()}: 0.8 MB in files")
    assert s3.asked("/chunks/") == []


@pytest.mark.usefixtures("small")
def test_a_store_that_refuses_is_named(s3: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason; nothing is stored."""
    monkeypatch.setattr(cloud, "PATIENCE_S", 0.2)
    for fault, reason in ((Expired(), "the credentials have expired"), (Busy(), "the store answers SlowDown")):
        s3.store.faults = Faults(Fault(fault, key="*/chunks/*"))
        told = brand("profile", s3.url())
        assert told.code == 1
        assert f"brand: cannot read {s3.url()}/chunks/0000000" in told.err
        assert f": {reason}" in told.err
    found = load_profile(s3.url())
    assert found is not None
    assert is_assumed(found)
