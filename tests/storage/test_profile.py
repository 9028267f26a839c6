"""Storage profiles: what follows from measured numbers, where they are kept, and how they are measured."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brand.errors import BrandError, StorageError, UsageError
from brand.node.setup.choose import DEFAULT_DEPTH, depth_of
from brand.storage.io import device
from brand.storage.io.device import IN_MEMORY, Mount, device_name, find_mount, mount_of, parse_mounts
from brand.storage.io.pagecache import CachedFile
from brand.storage.profile import probe, profile
from brand.storage.profile.probe import Measurement, bandwidth, take_measurement
from brand.storage.profile.profile import (
    DEFAULT_STRIPE_BYTES,
    STORE,
    Profile,
    best_depth,
    busy_bytes,
    gap_bytes,
    load_profile,
    save_profile,
    sequential_of,
    stripe_bytes,
    stripe_length,
)
from brand.storage.profile.ranges import (
    MOST_IN_FLIGHT,
    ProfileCell,
    Range,
    cells_that_fit,
    layouts,
    place,
    reads_of,
    rounds,
)
from tests.rounds import examples
from tests.support import descriptors

KIB = 1024
SIZES = tuple(KIB << power for power in range(5, 13))
DEPTHS = (1, 2, 4, 8, 16)

speeds = st.floats(1e3, 1e12)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any profile that can be, with places of the table that were not measured."""
    sizes = sorted(draw(st.sets(st.integers(1, 1 << 30), min_size=1, max_size=8)))
    depths = sorted(draw(st.sets(st.integers(1, 256), min_size=1, max_size=6)))
    row = st.lists(st.one_of(st.just(0.0), speeds), min_size=len(sizes), max_size=len(sizes)).map(tuple)
    table = draw(st.lists(row, min_size=len(depths), max_size=len(depths)).map(tuple))
    assume(any(map(any, table)))
    return Profile(draw(st.text(max_size=40)), tuple(sizes), tuple(depths), table, draw(speeds))


def modelled(*, latency_s: float, one: float, most: float, operations: float = math.inf) -> Profile:
    """The storage of a simple model: each read waits, then runs at `one` bytes/s; all together stay below `most`."""

    def speed(size: int, depth: int) -> float:
        return min(most, operations * size, depth * size / (latency_s + size / one))

    table = tuple(tuple(speed(size, depth) for size in SIZES) for depth in DEPTHS)
    return Profile("a model", SIZES, DEPTHS, table, sequential_of(SIZES, DEPTHS, table))


def one_depth(curve: Sequence[float], sequential: float) -> Profile:
    """A profile with 8 reads in flight only."""
    return Profile("one", SIZES[: len(curve)], (8,), (tuple(curve),), sequential)


NVME = modelled(latency_s=100e-6, one=2e9, most=3e9)
NAS = modelled(latency_s=500e-6, one=1e9, most=120e6, operations=400)


# What follows from the numbers


def test_a_gap_costs_as_much_as_an_operation() -> None:
    """A disk with a known latency reads latency times bandwidth in that time, whatever the size of the read."""
    curve = [size / (0.008 + size / 160e6) for size in SIZES]
    disk = one_depth(curve, 160e6)
    assert [gap_bytes(disk, size) for size in SIZES] == pytest.approx([0.008 * 160e6] * len(SIZES), abs=1)
    assert gap_bytes(one_depth([200e6] * len(SIZES), 160e6), SIZES[0]) == 0
    assert gap_bytes(None, 1) == pytest.approx(DEFAULT_STRIPE_BYTES / 9, abs=1)


@pytest.mark.slow
@examples(50)
@given(profiles())
def test_the_choice_lies_within_what_was_measured(found: Profile) -> None:
    """The depth was measured, and the read size is from its smallest to its largest one."""
    row = found.bytes_per_s[found.depths.index(best_depth(found))]
    measured = [size for size, speed in zip(found.sizes, row, strict=True) if speed]
    assert measured[0] <= stripe_bytes(found) <= measured[-1]


@pytest.mark.slow
@examples(50)
@given(profiles(), st.integers(-8, 8))
def test_the_choice_depends_on_ratios_only(found: Profile, power: int) -> None:
    """A storage that is as many times faster at everything has the same stripes."""
    factor = 2.0**power
    table = tuple(tuple(value * factor for value in row) for row in found.bytes_per_s)
    other = replace(found, bytes_per_s=table, sequential=found.sequential * factor)
    assert (best_depth(other), stripe_bytes(other)) == (best_depth(found), stripe_bytes(found))


@given(st.lists(speeds, min_size=1, max_size=8), speeds, speeds)
def test_more_is_asked_of_longer_reads(curve: list[float], first: float, second: float) -> None:
    """A higher sequential bandwidth never gives a shorter stripe."""
    low, high = sorted((first, second))
    assert stripe_bytes(one_depth(curve, low)) <= stripe_bytes(one_depth(curve, high))


@given(st.lists(speeds, min_size=1, max_size=8), st.lists(st.floats(1, 8), min_size=8, max_size=8), speeds)
def test_a_faster_storage_needs_no_longer_reads(curve: list[float], faster: list[float], sequential: float) -> None:
    """Raising any part of the curve never gives a longer stripe."""
    raised = [speed * factor for speed, factor in zip(curve, faster, strict=False)]
    before, after = stripe_bytes(one_depth(curve, sequential)), stripe_bytes(one_depth(raised, sequential))
    assert after <= before + 1  # one byte for rounding


@pytest.mark.slow
@given(st.floats(10e-6, 20e-3), st.floats(1e7, 5e9), st.floats(1e7, 5e9), st.floats(50, 1e6))
def test_the_chosen_reads_do_what_they_are_chosen_for(latency: float, one: float, most: float, ops: float) -> None:
    """On a modelled storage they reach 90 % of sequential, but for what lies between two measured sizes."""
    found = modelled(latency_s=latency, one=one, most=most, operations=ops)
    size, depth = stripe_bytes(found), best_depth(found)
    row = found.bytes_per_s[found.depths.index(depth)]
    assume(row[-1] >= 0.9 * found.sequential)
    true = min(most, ops * size, depth * size / (latency + size / one))
    assert true >= 0.8 * found.sequential


def test_between_two_sizes_the_curve_is_a_line_over_the_logarithm() -> None:
    """From 50 at 64 KiB to 100 at 256 KiB, 90 is reached at 64 KiB * 4 ** 0.8."""
    found = Profile("", (64 * KIB, 256 * KIB), (1,), ((50.0, 100.0),), 100.0)
    assert stripe_bytes(found) == math.ceil(64 * KIB * 4**0.8)


def test_one_figure_that_is_too_low_does_not_ask_for_the_largest_reads() -> None:
    """Bandwidth does not fall with the read size: a dip and its neighbours are taken together."""
    assert stripe_bytes(one_depth([10, 20, 40, 80, 100, 100, 89, 101], 100)) < 256 * 2 * KIB
    assert stripe_bytes(one_depth([10, 20, 40, 80, 100, 100, 100, 100], 100)) < 256 * 2 * KIB


def test_an_nvme_disk_is_kept_busy_by_many_small_reads() -> None:
    """With 16 in flight reads far smaller than 512 KiB do; one at a time would have to be large."""
    assert best_depth(NVME) in (8, 16)
    assert stripe_bytes(NVME) < 64 * KIB
    alone = replace(NVME, depths=(1,), bytes_per_s=NVME.bytes_per_s[:1], sequential=max(NVME.bytes_per_s[0]))
    assert best_depth(alone) == 1
    assert stripe_bytes(alone) > 512 * KIB


def test_a_storage_is_busy_with_its_reads_in_flight() -> None:
    """A store that answers late needs far more than a disk; of an unknown storage nothing is said."""
    assert busy_bytes(NVME) == best_depth(NVME) * stripe_bytes(NVME)
    assert busy_bytes(STORE) > 50 * busy_bytes(NVME)
    assert busy_bytes(None) == 0


def test_a_cache_folder_on_a_fast_disk_gets_as_many_reads_as_it_rewards() -> None:
    """Also where the storage behind it rewards one at a time."""
    assert depth_of([NAS]) == 1
    assert depth_of([NAS, None]) == DEFAULT_DEPTH
    assert depth_of([NAS, NVME]) == best_depth(NVME)


def test_a_limit_on_operations_is_met_by_size_alone() -> None:
    """120 MB/s and 400 operations/s: one read in flight does as well as 16, and 270 kB are 90 %."""
    assert best_depth(NAS) == 1
    assert 250 * KIB < stripe_bytes(NAS) < 320 * KIB


def test_reads_in_flight_that_gain_little_are_not_kept() -> None:
    """4 % are no reason, 40 % are."""
    little = Profile("", (64 * KIB, KIB * KIB), (1, 8), ((96.0, 100.0), (100.0, 100.0)), 100.0)
    assert best_depth(little) == 1
    assert best_depth(replace(little, bytes_per_s=((60.0, 100.0), (100.0, 100.0)))) == 8


def test_where_nothing_reaches_the_line_the_largest_reads_are_taken() -> None:
    """Also where one place of the table is all that was measured."""
    assert stripe_bytes(one_depth([1, 2, 3], 100)) == SIZES[2]
    assert stripe_bytes(one_depth([0, 2, 0], 100)) == SIZES[1]


def test_without_a_profile_reads_are_half_a_mebibyte() -> None:
    """The figure of the documentation."""
    assert stripe_bytes(None) == DEFAULT_STRIPE_BYTES == 512 * KIB


@given(st.integers(1, 1 << 30), st.floats(0, 1e9), st.integers(1, 1 << 24))
def test_a_stripe_is_just_long_enough(read_bytes: int, mean: float, chunk_size: int) -> None:
    """At least one sample, at the most a quarter of a chunk, and in between the fewest that hold as many bytes."""
    length, most = stripe_length(read_bytes, mean, chunk_size), max(1, chunk_size // 4)
    assert 1 <= length <= most
    assert length == most or length * mean >= read_bytes * (1 - 1e-9)
    assert length == 1 or (length - 1) * mean < read_bytes


@given(st.integers(1, 1 << 30), st.integers(1, 1 << 30), st.floats(0, 1e9), st.integers(1, 1 << 24))
def test_longer_reads_are_no_shorter_stripes(first: int, second: int, mean: float, chunk_size: int) -> None:
    """The length rises with the bytes."""
    low, high = sorted((first, second))
    assert stripe_length(low, mean, chunk_size) <= stripe_length(high, mean, chunk_size)


@pytest.mark.parametrize(
    ("read_bytes", "mean", "chunk_size", "length"),
    [
        (512 * KIB, 110e3, 64, 5),
        (512 * KIB, 1e6, 64, 1),
        (512 * KIB, 10.0, 64, 16),
        (512 * KIB, 0.0, 64, 16),
        (1, 0.001, 3, 1),
        (100, 50.0, 64, 2),
        (101, 50.0, 64, 3),
    ],
)
def test_stripes_of_known_length(read_bytes: int, mean: float, chunk_size: int, length: int) -> None:
    """Among them samples without bytes, and chunks of fewer than four."""
    assert stripe_length(read_bytes, mean, chunk_size) == length


@pytest.mark.slow
@examples(50)
@given(profiles())
def test_sequential_lies_among_the_measured_figures(found: Profile) -> None:
    """Never above the fastest figure, never below the slowest."""
    measured = [value for row in found.bytes_per_s for value in row if value]
    assert min(measured) * 0.999 <= sequential_of(found.sizes, found.depths, found.bytes_per_s) <= max(measured) * 1.001


def test_sequential_is_what_large_reads_give_with_enough_in_flight() -> None:
    """Small reads do not count, few bytes in flight do not count, and one figure by chance does not decide."""
    assert sequential_of((1, 2, 4, 8), (1,), [(700, 500, 90, 100)]) == 95
    assert sequential_of((1, 8, 16), (1, 4), [(900, 10, 10), (500, 100, 120)]) == 110
    assert sequential_of((4, 8, 16), (1, 4, 16), [(9, 9, 100), (100, 103, 102), (999, 0, 0)]) == 103
    assert sequential_of((4, 8), (1, 2), [(7, 0), (0, 0)]) == 7


# Where it is kept


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def stored(cache: Path, tmp_path: Path) -> tuple[Profile, Path]:
    """A stored profile of the storage that `tmp_path` lies on."""
    found = replace(NVME, device=device_name(mount_of(tmp_path)))
    return found, save_profile(found)


@pytest.mark.slow
@examples(50)
@given(profiles())
def test_json_gives_the_same_profile(found: Profile) -> None:
    """To the last bit."""
    assert Profile.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_what_was_stored_is_found_again(stored: tuple[Profile, Path], cache: Path, tmp_path: Path) -> None:
    """From any folder of that storage; one file, named after it; a later one takes its place."""
    found, file = stored
    (tmp_path / "folder").mkdir()
    assert load_profile(tmp_path) == load_profile(str(tmp_path / "folder")) == found
    assert [path for path in cache.rglob("*") if path.is_file()] == [file]
    assert file.parent == cache / "brand" / "storage"
    save_profile(replace(found, sequential=1.0))
    assert load_profile(tmp_path) == replace(found, sequential=1.0)
    assert len(list(file.parent.iterdir())) == 1


def test_nothing_is_known_at_first(cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """That is no news; and nothing is created."""
    caplog.set_level(logging.DEBUG)
    assert load_profile(tmp_path) is None
    assert caplog.records == []
    assert not cache.exists()


def test_a_path_that_is_not_there_has_no_profile(cache: Path, tmp_path: Path) -> None:
    """And is no error here."""
    assert load_profile(tmp_path / "nowhere") is None


def damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Damage to the JSON value."""

    def apply(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    return apply


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "not UTF-8": lambda data: b"\xff" + data,
    "zeros": lambda data: bytes(len(data)),
    "too large": lambda data: data + b" " * (1 << 16),
    "deep": lambda _: b"[" * 60_000,
    "a list": lambda _: b"[]",
    "null": lambda _: b"null",
    "foreign": damaged(lambda value: value.update(format="another program")),
    "newer": damaged(lambda value: value.update(version=2)),
    "older": damaged(lambda value: value.update(version=0)),
    "another storage": damaged(lambda value: value.update(device="ext4 on /dev/other")),
    "unnamed": damaged(lambda value: value.update(device=7)),
    "sizes fall": damaged(lambda value: value["sizes"].reverse()),
    "sizes repeat": damaged(lambda value: value["sizes"].__setitem__(1, value["sizes"][0])),
    "a size of zero": damaged(lambda value: value["sizes"].__setitem__(0, 0)),
    "half a byte": damaged(lambda value: value["sizes"].__setitem__(0, 0.5)),
    "giant size": damaged(lambda value: value["sizes"].__setitem__(-1, 10**400)),
    "no sizes": damaged(lambda value: value.update(sizes=[])),
    "depth is true": damaged(lambda value: value["depths"].__setitem__(0, True)),
    "one row too few": damaged(lambda value: value["bytes_per_s"].pop()),
    "one column too few": damaged(lambda value: value["bytes_per_s"][0].pop()),
    "a row of text": damaged(lambda value: value["bytes_per_s"].__setitem__(0, "12345678")),
    "NaN": damaged(lambda value: value["bytes_per_s"][0].__setitem__(0, math.nan)),
    "infinite": damaged(lambda value: value["bytes_per_s"][0].__setitem__(0, math.inf)),
    "negative": damaged(lambda value: value["bytes_per_s"][0].__setitem__(0, -1.0)),
    "giant": damaged(lambda value: value["bytes_per_s"][0].__setitem__(0, 10**400)),
    "all zero": damaged(lambda value: value.update(bytes_per_s=[[0.0] * len(SIZES)] * len(DEPTHS))),
    "sequential zero": damaged(lambda value: value.update(sequential=0.0)),
    "sequential NaN": damaged(lambda value: value.update(sequential=math.nan)),
    "sequential missing": damaged(lambda value: value.pop("sequential")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_left_alone(
    kind: str, stored: tuple[Profile, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one line that names it and says what helps."""
    _, file = stored
    data = DAMAGE[kind](file.read_bytes())
    file.write_bytes(data)
    assert load_profile(tmp_path) is None
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("brand.storage", "WARNING")
    assert str(file) in record.getMessage()
    assert "brand profile" in record.getMessage()
    assert file.read_bytes() == data


@pytest.mark.slow
@examples(40)
@given(st.data())
def test_any_damage_is_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes changed, cut or put in anywhere: a profile that can be, or none; never an error."""
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "any-damage"))
        file = save_profile(replace(NAS, device=device_name(mount_of(folder))))
        content = file.read_bytes()
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        file.write_bytes(content[:start] + data.draw(st.binary(max_size=8)) + content[end:])
        found = load_profile(folder)
    if found is not None:
        assert stripe_bytes(found) > 0


def test_a_folder_in_its_place_is_no_profile(stored: tuple[Profile, Path], tmp_path: Path) -> None:
    """Nor is a file that cannot be read."""
    _, file = stored
    file.unlink()
    file.mkdir()
    assert load_profile(tmp_path) is None


@pytest.mark.parametrize("given_name", [None, "", "relative/folder"])
def test_without_a_cache_folder_of_its_own_it_is_kept_at_home(
    given_name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG_CACHE_HOME counts where it is an absolute path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    if given_name is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", given_name)
    assert save_profile(NAS).parent == tmp_path / ".cache" / "brand" / "storage"


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is in its place; and nobody has a home."""
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(StorageError, match=r"cannot write .*cache"):
        save_profile(NAS)
    assert load_profile(tmp_path) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(StorageError, match="XDG_CACHE_HOME"):
        save_profile(NAS)
    assert load_profile(tmp_path) is None


@given(st.text(max_size=200), st.text(max_size=200))
def test_each_storage_has_a_safe_file_name_of_its_own(first: str, second: str) -> None:
    """Whatever it is called."""
    files = [profile._profile_file(name) for name in (first, second)]
    assert (files[0] == files[1]) == (first == second)
    for file in files:
        assert file.name.isascii()
        assert len(file.name) < 100
        assert not set(file.name) & set("/\0 \n")


# Which storage a path lies on

MOUNTINFO = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid,nodev - proc proc rw
25 22 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=24684092k
30 22 259:2 / /data rw,noatime shared:30 - xfs /dev/nvme0n1p2 rw,attr2
31 22 259:2 /sets/images /home/ann/images rw,noatime shared:31 master:2 - xfs /dev/nvme0n1p2 rw,attr2
32 22 0:52 / /mnt/my\040NAS\011\134x rw shared:32 - nfs4 server.lan:/export/my\040sets rw,vers=4.2,addr=10.0.0.2
33 22 0:53 / /mnt/nas rw shared:33 - autofs systemd-1 rw,fd=49
34 33 0:54 / /mnt/nas rw shared:34 - nfs 10.0.0.2:/export rw,vers=3
35 22 0:55 / /var/lib/merged rw - overlay overlay rw,lowerdir=/l,upperdir=/u - x,workdir=/w
36 22 0:40 /@home /home rw,relatime shared:36 - btrfs /dev/sdb2 rw,ssd,subvolid=257,subvol=/@home
37 22 0:40 /@data /srv rw,relatime shared:37 - btrfs /dev/sdb2 rw,ssd,subvolid=258,subvol=/@data
38 22 0:60 / /mnt/host rw - virtiofs share rw
39 22 0:61 / /mnt/bucket rw - fuse.sshfs ann@host:/sets rw,user_id=0
40 22 0:62 / /tank rw - zfs tank rw,xattr
41 30 259:3 / /data/deep/er rw - ext4 /dev/nvme1n1 rw
42 22 0:70 /sub/folder /bound rw - nfs4 server.lan:/export/my\040sets rw

not a line of it
99 22 8:1
x 22 8:1 / / rw - ext4 /dev/no rw
"""
MOUNTS = parse_mounts(MOUNTINFO)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "ext4 on /dev/sda1"),
        ("/database", "ext4 on /dev/sda1"),
        ("/data", "xfs on /dev/nvme0n1p2"),
        ("/data/sets/images", "xfs on /dev/nvme0n1p2"),
        ("/home/ann/images/a", "xfs on /dev/nvme0n1p2"),
        ("/data/deep/er/a", "ext4 on /dev/nvme1n1"),
        ("/data/deep/erase", "xfs on /dev/nvme0n1p2"),
        ("/mnt/my NAS\t\\x/a", "nfs4 on server.lan:/export/my sets"),
        ("/bound", "nfs4 on server.lan:/export/my sets"),
        ("/mnt/nas/a", "nfs on 10.0.0.2:/export"),
        ("/var/lib/merged/a", "overlay on overlay at /var/lib/merged"),
        ("/home/bob", "btrfs on /dev/sdb2"),
        ("/srv/a", "btrfs on /dev/sdb2"),
        ("/mnt/host/a", "virtiofs on share at /mnt/host"),
        ("/mnt/bucket/a", "fuse.sshfs on ann@host:/sets"),
        ("/tank/a", "zfs on tank at /tank"),
        ("/dev/shm/a", "tmpfs on tmpfs at /dev/shm"),
    ],
)
def test_the_storage_of_a_path_is_its_deepest_mount(path: str, name: str) -> None:
    """Bind mounts and subvolumes are the storage they show; blanks are unescaped; the last mount of a place is seen."""
    mount = find_mount(MOUNTS, path)
    assert mount is not None
    assert device_name(mount) == name


def test_the_kernels_number_of_the_mount_decides() -> None:
    """A mount below a hidden one; a number that is not listed is no reason to give up."""
    chosen = find_mount(MOUNTS, "/data/deep/er/a", 30)
    assert chosen is not None
    assert chosen.point == "/data"
    assert find_mount(MOUNTS, "/data/deep/er/a", 4711) == find_mount(MOUNTS, "/data/deep/er/a")


def test_lines_that_are_no_mounts_are_left_out() -> None:
    """And nothing at all is no mount."""
    assert len(MOUNTS) == 16
    assert find_mount([], "/") is None
    assert MOUNTS[0] == Mount(22, "/", "/", "ext4", "/dev/sda1")
    assert MOUNTS[12].source == "ann@host:/sets"


@given(st.text(alphabet=" -/\\01234567\nabx:", max_size=300))
def test_any_text_is_parsed(text: str) -> None:
    """What the kernel may write one day is no error."""
    for mount in parse_mounts(text):
        assert isinstance(device_name(mount), str)


def test_this_very_folder_lies_somewhere(tmp_path: Path) -> None:
    """Folders, files and links of one storage have one name."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    names = {device_name(mount_of(tmp_path / name)) for name in ("", "file", "link")}
    assert len(names) == 1
    with pytest.raises(StorageError, match="nowhere"):
        mount_of(tmp_path / "nowhere")


def test_without_mountinfo_it_says_linux_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere no profile is found, and that is all."""

    def missing(_: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(device, "_text", missing)
    with pytest.raises(BrandError, match="Linux only"):
        mount_of(tmp_path)
    assert load_profile(tmp_path) is None


# What is read


def overlaps(ranges: Sequence[Range]) -> int:
    """How many ranges begin before the one before them ends."""
    rows = sorted(ranges)
    return sum(a.file == b.file and b.offset < a.offset + a.size for a, b in pairwise(rows))


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    st.lists(st.integers(1, 900), max_size=40),
    st.integers(0, 1000),
)
def test_ranges_lie_in_files_and_apart(files: list[int], wanted: list[int], seed: int) -> None:
    """Each as long as it was wanted, none twice, and none given up while a file has room for it."""
    placed = place(files, wanted, random.Random(seed))
    there = [piece for piece in placed if piece is not None]
    assert [piece.size if piece else size for piece, size in zip(placed, wanted, strict=True)] == wanted
    assert all(piece.offset >= 0 and piece.offset + piece.size <= files[piece.file] for piece in there)
    assert overlaps(there) == 0
    used = [sum(piece.size for piece in there if piece.file == number) for number in range(len(files))]
    refused = [size for piece, size in zip(placed, wanted, strict=True) if piece is None]
    assert all(size > length - taken for size in refused for length, taken in zip(files, used, strict=True))


def test_ranges_are_spread_over_all_of_a_file() -> None:
    """Not in steps, not aligned, and other ones with each seed."""
    pieces = [p for p in place([1 << 20], [4096] * 100, random.Random(1)) if p]
    assert min(p.offset for p in pieces) < 1 << 17
    assert max(p.offset for p in pieces) > 7 << 17
    assert len({p.offset % 4096 for p in pieces}) > 50
    assert place([1 << 20], [4096] * 100, random.Random(2)) != pieces


@given(st.lists(st.integers(0, 1 << 26), max_size=8))
def test_cells_have_room_twice_over(files: list[int]) -> None:
    """And bounded memory."""
    for cell in cells_that_fit(files, SIZES, DEPTHS):
        assert 2 * cell.least <= sum(size // cell.size for size in files)
        assert cell.size * cell.depth <= MOST_IN_FLIGHT
        assert cell.least >= 2
        assert reads_of(cell) >= cell.least
        assert reads_of(cell) % cell.depth == 0


def test_a_round_goes_one_way_and_the_next_one_back() -> None:
    """Every other depth comes first, so that a slow storage has them; all cells are visited as often."""
    cells = cells_that_fit([1 << 40], SIZES, DEPTHS)
    order = rounds(cells, 2)
    assert [{cell.depth for cell in part} for part in order] == [{1, 4, 16}, {2, 8}] * 2
    assert order[0] == sorted(order[0])
    assert order[2] == order[0][::-1]
    assert sorted(cell for part in order for cell in part) == sorted(cells * 2)
    assert rounds([ProfileCell(4096, 1)], 2) == [[ProfileCell(4096, 1)]] * 2


@pytest.mark.slow
@examples(10)
@given(st.lists(st.integers(1 << 16, 1 << 24), min_size=1, max_size=4), st.integers(0, 100))
def test_little_data_is_used_again_and_again(files: list[int], seed: int) -> None:
    """A visit never reads a byte twice, and has the fewest reads it needs wherever the cell fits."""
    cells = cells_that_fit(files, SIZES, DEPTHS)
    visits = [cell for part in rounds(cells, 1) for cell in part]
    laid = list(layouts(files, visits, random.Random(seed)))
    assert [cell for cell, _ in laid] == visits
    for cell, ranges in laid:
        assert {piece.size for piece in ranges} == {cell.size}
        assert cell.least <= len(ranges) <= reads_of(cell)
        assert overlaps(ranges) == 0


@pytest.mark.slow
def test_much_data_is_read_once() -> None:
    """All visits of all rounds together have no byte in common."""
    files = [3 << 32, 1 << 33]
    visits = [cell for part in rounds(cells_that_fit(files, SIZES, DEPTHS), 2) for cell in part]
    together = [piece for _, ranges in layouts(files, visits, random.Random(0)) for piece in ranges]
    assert len(together) == sum(map(reads_of, visits))
    assert overlaps(together) == 0


# From moments to bandwidth


def staircase(burst: int, step: int, every: float, steps: int) -> list[float]:
    """Reads that a limit lets through: some at once, then `step` of them every so often, 10 us apart."""
    return [n * 1e-5 for n in range(1, burst + 1)] + [
        k * every + n * 1e-5 for k in range(1, steps) for n in range(step)
    ]


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ([0.01 * n for n in range(1, 101)], 100),
        (staircase(80, 40, 0.1, 5), 400),
        (staircase(40, 40, 0.1, 5), 400),
        (staircase(200, 5, 0.1, 9), 50),
        ([0.5] * 16 + [1.0] * 16, 32),
        ([0.1 * wave for wave in range(1, 9) for _ in range(4)], 40),
        ([2.0, 2.0], 1),
        ([0.5], 2),
        ([1e-9, 1.0], 2),
    ],
)
def test_bandwidth_of_known_reads(done: list[float], expected: float) -> None:
    """An even flow, bursts and steps of a limited storage, waves of reads that end together, and hardly any reads."""
    assert bandwidth(done, 1000) == pytest.approx(1000 * expected, rel=0.01)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=60))
def test_bandwidth_is_a_rate(done: list[float]) -> None:
    """Positive, and half of it where all takes twice the time."""
    speed = bandwidth(sorted(done), 4096)
    assert 0 < speed < math.inf
    assert bandwidth([n * 2 for n in sorted(done)], 4096) == pytest.approx(speed / 2)


# Measuring


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small reads, so that small real data sets are enough. Needs a storage below the temporary folder."""
    if mount_of(tmp_path).type in IN_MEMORY:
        pytest.skip("the temporary folder lies in memory")
    monkeypatch.setattr(probe, "SIZES", (4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB))
    monkeypatch.setattr(probe, "DEPTHS", (1, 2, 4))
    monkeypatch.setattr(probe, "LEAST_BYTES", 500_000)
    monkeypatch.setattr(probe, "LARGE", 32 * KIB)
    monkeypatch.setattr(probe, "rounds", lambda cells: rounds(cells, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_real_data_set_is_measured(photos_set: Path, cache: Path) -> None:
    """Every cell has a figure; progress is told to the end; nothing stays open, and nothing is stored by itself."""
    told: list[tuple[float, float, int]] = []
    before = descriptors()
    found = take_measurement(photos_set, seconds=60, report=lambda *news: told.append(news))
    assert isinstance(found, Measurement)
    assert found.profile.sizes == (4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB)
    assert found.profile.depths == (1, 2, 4)
    assert all(speed > 0 for row in found.profile.bytes_per_s for speed in row)
    assert found.profile.device == device_name(mount_of(photos_set))
    assert found.file_bytes == sum(path.stat().st_size for path in (photos_set / "chunks").iterdir())
    assert found.read_bytes > found.file_bytes
    assert stripe_bytes(found.profile) <= 32 * KIB
    assert told == sorted(told, key=lambda news: news[2])
    assert told[-1][0] >= told[-1][1]
    assert told[-1][2] == found.read_bytes
    assert descriptors() <= before
    assert load_profile(photos_set) is None


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_reads_are_announced_done_and_dropped(fashion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order for each range, of one large file that was just written; and no range of a visit is read twice."""
    file = tmp_path / "large"
    file.write_bytes(b"".join(path.read_bytes() for path in sorted(fashion.rglob("*.png"))))
    calls: list[tuple[str, int, int]] = []
    names = {os.POSIX_FADV_WILLNEED: "announce", os.POSIX_FADV_DONTNEED: "drop"}
    advise, preadv = os.posix_fadvise, os.preadv

    def advised(descriptor: int, offset: int, size: int, advice: int) -> None:
        if size:
            calls.append((names[advice], offset, size))
        advise(descriptor, offset, size, advice)

    def read(descriptor: int, buffers: Any, offset: int) -> int:
        calls.append(("read", offset, len(buffers[0])))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(probe, "DEPTHS", (1,))
    monkeypatch.setattr(os, "posix_fadvise", advised)
    monkeypatch.setattr(os, "preadv", read)
    take_measurement(file, seconds=60)
    assert [name for name, _, _ in calls] == ["announce", "read", "drop"] * (len(calls) // 3)
    assert all(a[1:] == b[1:] == c[1:] for a, b, c in zip(calls[::3], calls[1::3], calls[2::3], strict=True))
    assert all(offset >= 0 and offset + size <= file.stat().st_size for _, offset, size in calls)
    assert len(calls) >= 3 * 4 * 2


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_files_that_stay_in_memory_are_not_measured(photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so; a file system that does not tell what it holds is believed."""
    monkeypatch.setattr(CachedFile, "holds", lambda *_: True)
    with pytest.raises(StorageError, match="served by the page cache, not by the storage"):
        take_measurement(photos_set, seconds=60)
    monkeypatch.setattr(CachedFile, "holds", lambda *_: None)
    assert take_measurement(photos_set, seconds=60).profile.sequential > 0


@pytest.mark.usefixtures("small")
def test_memory_is_no_storage(photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the file system in memory is called."""
    for kind in IN_MEMORY:
        monkeypatch.setattr(probe, "mount_of", lambda _, kind=kind: Mount(1, "/", "/", kind, "none"))
        with pytest.raises(StorageError, match="in memory"):
            take_measurement(photos_set)


def test_too_little_is_not_measured(photos_set: Path, tmp_path: Path) -> None:
    """A small set, an empty folder, a file full of nothing: the message says how much is needed."""
    (tmp_path / "empty").mkdir()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    for path in (photos_set, tmp_path / "empty", tmp_path / "sparse"):
        with pytest.raises(UsageError, match="64 MiB in files of some MiB are needed"):
            take_measurement(path)


@pytest.mark.usefixtures("small")
def test_too_little_time_is_an_error(photos_set: Path) -> None:
    """Nothing is made up."""
    with pytest.raises(StorageError, match="too slow to be measured in 0 s"):
        take_measurement(photos_set, seconds=0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("what", ["an I/O error", "a file became shorter"])
def test_an_error_while_reading_names_the_path(what: str, photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends the measurement at once."""

    def fails(*_: object) -> int:
        if what == "an I/O error":
            raise OSError(errno.EIO, "Input/output error")
        return 0

    monkeypatch.setattr(os, "preadv", fails)
    expected = "cannot read .*photos.brand: .*input/output" if what == "an I/O error" else what
    with pytest.raises(StorageError, match=expected):
        take_measurement(photos_set, seconds=60)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As with every verb."""
    with pytest.raises(StorageError, match="nowhere"):
        take_measurement(tmp_path / "nowhere")


def test_elsewhere_than_on_linux_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the calls are missing."""
    monkeypatch.delattr(os, "posix_fadvise")
    with pytest.raises(BrandError, match="Linux only"):
        take_measurement(tmp_path)


def test_the_page_cache_tells_what_it_holds(tmp_path: Path) -> None:
    """What was just written is there; once on the storage and dropped it is not, and asking does not bring it back."""
    if mount_of(tmp_path).type in IN_MEMORY:
        pytest.skip("the temporary folder lies in memory")
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("rb") as file:
        cached = CachedFile(file.fileno())
        assert cached.holds(0, 65536)
        assert cached.holds(65535, 1)
        cached.drop_written()
        assert [cached.holds(0, 65536) for _ in range(3)] == [False] * 3
        os.pread(file.fileno(), 1, 0)
        assert cached.holds(0, 1)


def test_an_empty_file_holds_nothing_that_is_known(tmp_path: Path) -> None:
    """There is nothing to map."""
    (tmp_path / "empty").write_bytes(b"")
    with (tmp_path / "empty").open("rb") as file:
        assert CachedFile(file.fileno()).holds(0, 0) is None
