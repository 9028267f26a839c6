"""How much memory the samples may take: what a user says, what is there, what a control group allows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from brand.available import available_bytes
from brand.errors import UsageError
from brand.node.setup.memory import DEFAULT_SHARE, memory_bytes, parse_size

UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@given(
    whole=st.integers(0, 999),
    part=st.one_of(st.none(), st.integers(0, 999)),
    unit=st.sampled_from(sorted(UNITS)),
    space=st.sampled_from(["", " ", "  "]),
    case=st.sampled_from([str, str.lower, str.upper]),
)
def test_sizes_as_text(whole: int, part: int | None, unit: str, space: str, case: type[str]) -> None:
    """`2GB`, `500 MB`, `1.5GiB`, in any case."""
    number = str(whole) if part is None else f"{whole}.{part}"
    assert parse_size(f"{space}{number}{space}{case(unit)}{space}") == int(float(number) * UNITS[unit])


@given(st.text(max_size=12))
@example("-1GB")
@example("1e3")
@example("nan")
@example("inf")
@example("1,5GB")
@example("1..5GB")
@example("GB")
@example("2 G B")
@example("2Gb2")
@example("9" * 400)
@example("9" * 400 + "GB")
@example("9999999999TB")
def test_text_that_is_no_size(text: str) -> None:
    """It is a size, or an error says that it is none."""
    with suppress(UsageError):
        assert 0 <= parse_size(text) <= 1 << 60


@given(st.integers(1, 1 << 50), st.integers(1, 1 << 50))
def test_bytes_are_bytes(memory: int, everything: int) -> None:
    """But never more than all samples take."""
    assert memory_bytes(memory, everything) == min(memory, everything)
    assert memory_bytes(f"{memory}", everything) == min(memory, everything)


@given(st.floats(1e-12, 1), st.integers(1, 1 << 50))
def test_a_fraction_is_of_the_data(memory: float, everything: int) -> None:
    """At least one byte, at most all of it."""
    assert 1 <= memory_bytes(memory, everything) <= everything
    assert memory_bytes(memory, everything) in (1, int(memory * everything))


@pytest.mark.parametrize(
    "memory", [0, -1, 0.0, -0.5, 1.0000001, float("nan"), float("inf"), "0", "0GB", "0.2", "", "half", True, False]
)
def test_memory_that_makes_no_sense(memory: object) -> None:
    """An error names it."""
    with pytest.raises(UsageError):
        memory_bytes(memory, 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("memory", "instead"),
    [
        ("0.25", "for a fraction of the data give memory=0.25"),
        ("1.0", "for a fraction of the data give memory=1.0"),
        ("8G", r"write 8GB \(powers of 1,000\) or 8GiB \(powers of 1,024\)"),
        ("1.5 gi", r"write 1.5GB .* or 1.5GiB"),
        ("512m", "write 512MB .* or 512MiB"),
        ("lots", "2GB, 500MB or 1.5GiB, or a fraction of the data as 0.25"),
        ("25%", "a fraction of the data as 0.25"),
    ],
)
def test_the_message_says_what_to_write(memory: str, instead: str) -> None:
    """What was nearly right is shown as it is right."""
    with pytest.raises(UsageError, match=instead):
        memory_bytes(memory, 1000)


@pytest.mark.parametrize("memory", [[1], b"1GB", (1,), 1 + 2j])
def test_memory_of_another_type(memory: object) -> None:
    """An error says what may be given."""
    with pytest.raises(UsageError, match="give bytes"):
        memory_bytes(memory, 1000)  # type: ignore[arg-type]


def test_by_default_a_quarter_of_what_is_there() -> None:
    """Or all samples, where they take less."""
    assert memory_bytes(None, 1000) == 1000
    assert 1 <= memory_bytes(None, 1 << 60) <= available_bytes() * (DEFAULT_SHARE + 0.2)


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path, available_kib: int | None = 8 << 20, groups: str = "") -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.groups.mkdir()
        if available_kib is not None:
            (self.proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {available_kib} kB\nMemFree: 3 kB\n")
        (self.proc / "self/cgroup").write_text(groups)

    def group(self, path: str, **files: object) -> None:
        """A control group and its files; `_` stands for a dot."""
        folder = self.groups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name.replace("__", ".")).write_text(f"{value}\n")

    @property
    def available(self) -> int:
        """What may be allocated on it."""
        return available_bytes(self.proc, self.groups)


GIB = 1 << 30


def test_without_control_groups(tmp_path: Path) -> None:
    """What /proc/meminfo says."""
    assert Machine(tmp_path).available == 8 * GIB


def test_without_meminfo(tmp_path: Path) -> None:
    """As where /proc is not mounted: the free memory, at most 4 GiB."""
    assert 0 < Machine(tmp_path, None).available <= 4 * GIB


@pytest.mark.parametrize(("limit", "used", "expected"), [(2 * GIB, GIB, GIB), ("max", GIB, 8 * GIB), (GIB, 2 * GIB, 0)])
def test_control_groups_version_2(tmp_path: Path, limit: object, used: int, expected: int) -> None:
    """Limit less usage, where there is a limit."""
    machine = Machine(tmp_path, groups="0::/a/b\n")
    machine.group("a/b", memory__max=limit, memory__current=used)
    assert machine.available == expected


def test_a_group_above_counts(tmp_path: Path) -> None:
    """The tightest of all levels."""
    machine = Machine(tmp_path, groups="0::/a/b/c\n")
    machine.group("a/b/c", memory__max="max", memory__current=5)
    machine.group("a/b", memory__max=3 * GIB, memory__current=GIB)
    machine.group("a", memory__max=4 * GIB, memory__current=3 * GIB)
    assert machine.available == GIB


def test_page_cache_does_not_count_as_used(tmp_path: Path) -> None:
    """The kernel would give it back."""
    machine = Machine(tmp_path, groups="0::/a\n")
    machine.group(
        "a", memory__max=2 * GIB, memory__current=2 * GIB, memory__stat=f"anon 5\ninactive_file {GIB}\nfile 1"
    )
    assert machine.available == GIB


def test_control_groups_version_1(tmp_path: Path) -> None:
    """In the folder of the controller; without a limit the kernel says a huge number."""
    machine = Machine(tmp_path, groups="5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    machine.group("memory/docker/abc", **{"memory__limit_in_bytes": 3 * GIB, "memory__usage_in_bytes": 2 * GIB})
    machine.group("memory", **{"memory__limit_in_bytes": 9223372036854771712, "memory__usage_in_bytes": 5 * GIB})
    assert machine.available == GIB


@pytest.mark.parametrize("groups", ["0::/../..\n", "0::/gone\n", "0::/\n", "4:memory:/gone\n"])
def test_groups_that_are_not_seen_from_here(tmp_path: Path, groups: str) -> None:
    """In a container the path may lead nowhere: the root's own files count, if any."""
    machine = Machine(tmp_path, groups=groups)
    assert machine.available == 8 * GIB
    machine.group("", memory__max=2 * GIB, memory__current=GIB)
    machine.group("memory", **{"memory__limit_in_bytes": 2 * GIB, "memory__usage_in_bytes": GIB})
    assert machine.available == GIB
