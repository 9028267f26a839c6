"""`python -m bench.papers.show_scene`: the papers' tables, their JSON and their picture, and what is wrong use."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.papers.policies import POLICIES
from bench.papers.show_scene import main
from tests.support import Outcome, called

SMALL = """
samples = 400
mean_mb = 2
sd_mb = 0
epochs = 2
nodes = 4
batch = 20
train_mb_s = 100
decode_mb_s = 200
network_mb_s = 10000
client_mb_s = 2000
storage_mb_s = [[1, 66], [4, 146]]
threads = [2, 2]
room_mb = [100, 100]
local_mb_s = [20000, 20000]
"""
"""800 MB for four nodes with memory for half of them."""


def show(*args: object) -> Outcome:
    """Run `python -m bench.papers.show_scene` in this process."""
    return called(main, "show_scene", *args)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A scene that is simulated at once; its lower bound of 4 s is published as 8 s."""
    file = tmp_path / "small.toml"
    file.write_text(f"{SMALL}\n[published]\nperfect = 8.0\nnaive = 20.0\n")
    return file


@pytest.mark.slow
def test_a_table_of_the_thesis_is_printed_beside_ours() -> None:
    """Each row has our seconds, the published ones, the deviation, and the seconds of the fair clock."""
    lines = show("hdmlp-t1", "--policies", "perfect,staging").out.splitlines()
    assert lines[0] == "hdmlp-t1: 10,000 samples of 0.027 MB, 10 epochs, 4 nodes"
    assert [line.split() for line in lines[2:]] == [
        ["perfect", "7.30", "7.30", "+0.0%", "7.30"],
        ["staging", "10.19", "10.24", "-0.5%", "18.57"],
    ]


def test_all_policies_are_the_default(scene: Path) -> None:
    """In the order of the papers."""
    default, every = (show(scene, *asked, "--json").json for asked in ((), ("--policies", "all")))
    assert default == every
    assert [row["policy"] for row in default["rows"]] == list(POLICIES)


def test_seconds_are_scaled_so_that_the_lower_bound_is_the_published_one(scene: Path) -> None:
    """Also where the lower bound is not asked for."""
    (naive,) = show(scene, "--policies", "naive", "--json").json["rows"]
    perfect, again = show(scene, "--policies", "perfect, naive", "--json").json["rows"]
    assert perfect["in_turn_s"] == pytest.approx(8)
    assert perfect["deviation_percent"] == pytest.approx(0)
    assert naive == again
    assert naive["deviation_percent"] == pytest.approx(100 * (naive["in_turn_s"] / 20 - 1))


def test_a_policy_that_cannot_serve_the_scene_says_why(scene: Path) -> None:
    """In the table below, in JSON beside its empty cells."""
    asked = scene, "--policies", "lbann"
    out = show(*asked).out.splitlines()
    assert out[2].split() == ["lbann", "N/A"]
    assert out[3].startswith("lbann: the data store holds everything in memory")
    (row,) = show(*asked, "--json").json["rows"]
    assert row["in_turn_s"] is row["fair_s"] is row["deviation_percent"] is None
    assert out[3] == f"lbann: {row['reason']}"


def test_ours_are_drawn_beside_the_published(scene: Path, tmp_path: Path) -> None:
    """With matplotlib."""
    pytest.importorskip("matplotlib")
    plot = tmp_path / "scene.svg"
    found = show(scene, "--plot", plot)
    assert found.code == 0
    assert f"drawn in {plot}" in found.out
    assert "<svg" in plot.read_text()


def test_published_seconds_are_numbers(scene: Path) -> None:
    """The message names the file and the policy."""
    for wrong in ('naive = "long"', "naive = 0", "naive = nan"):
        scene.write_text(f"{SMALL}\n[published]\n{wrong}\n")
        found = show(scene, "--policies", "naive")
        assert found.code == 2
        assert f"{scene}: published naive" in found.err
    scene.write_text(f"published = 3\n{SMALL}")
    assert "give a table [published]" in show(scene).err


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        ((), "NAME|FILE"),
        (("hdmlp-t9",), "hdmlp-t1, hdmlp-t2"),
        (("hdmlp-t1", "--policies", "naive,best"), "give perfect, naive, staging"),
        (("hdmlp-t1", "--policies", ""), "give perfect, naive, staging"),
        (("hdmlp-t1", "--memory", "1GB"), "unrecognized arguments: --memory"),
        (("hdmlp-t1", "hdmlp-t2"), "unrecognized arguments: hdmlp-t2"),
        (("hdmlp-t1", "--plot", "scene.txt"), ".png, .svg, .pdf"),
    ],
)
def test_wrong_use_says_what_to_give(wrong: tuple[str, ...], cure: str) -> None:
    """With exit code 2."""
    found = show(*wrong)
    assert found.code == 2
    assert cure in found.err
