"""Scenes: what ships, what a seed draws, and which wrong ones are refused with what to give."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from bench.papers.clock import in_turn
from bench.papers.policies import POLICIES
from bench.papers.scene import Scene, load_grid, load_published, load_scene, scene_names
from brand.errors import UsageError
from tests.papers.models import scenes
from tests.rounds import examples

T2 = load_scene("hdmlp-t2")
FILE = """
samples = 1000
mean_mb = 1
sd_mb = 0
epochs = 1
nodes = 4
batch = 100
train_mb_s = 100
decode_mb_s = 200
network_mb_s = 10000
client_mb_s = 2000
storage_mb_s = [[1, 66], [4, 146]]
threads = [2, 2]
room_mb = [1024, 0]
local_mb_s = [21164, inf]
"""


def test_the_scenes_of_the_papers_ship() -> None:
    """Tables 1 to 4 and the grid of the thesis, and the scenarios of the paper; each can be loaded."""
    tables = [f"hdmlp-t{number}" for number in range(1, 5)]
    scenarios = ["hdmlp-1", "hdmlp-2", "hdmlp-3", "hdmlp-3-places", "hdmlp-4", "hdmlp-5"]
    assert scene_names() == sorted([*tables, "hdmlp-grid", *scenarios])
    for name in scene_names():
        assert load_scene(name).tiers == 2
        assert set(load_published(name)) <= set(POLICIES)


def test_the_grid_varies_the_room_only() -> None:
    """Rows have more disk, columns have more memory."""
    grid = load_grid("hdmlp-grid")
    for disk, row in zip(grid.disk_mb, grid.scenes, strict=True):
        for memory, scene in zip(grid.memory_mb, row, strict=True):
            assert scene == replace(load_scene("hdmlp-grid"), room_mb=(4096, memory, disk))


def test_every_figure_of_the_thesis_is_there() -> None:
    """36 cells of the tables with figures, 16 of the grid."""
    assert sum(len(load_published(f"hdmlp-t{number}")) for number in range(1, 5)) == 36
    grid = load_grid("hdmlp-grid")
    assert [len(row) for row in grid.published] == [len(row) for row in grid.scenes] == [4, 4, 4, 4]


@given(scenes())
@examples(30)
def test_an_epoch_draws_no_sample_twice(scene: Scene) -> None:
    """And all but those of the incomplete iteration."""
    draws = scene.draws()
    assert draws.shape == (scene.epochs, scene.iterations, scene.nodes, scene.batch // scene.nodes)
    for epoch in draws:
        assert len(np.unique(epoch)) == epoch.size == scene.samples - scene.samples % scene.batch
        assert 0 <= epoch.min() <= epoch.max() < scene.samples


def test_a_seed_fixes_draws_and_sizes() -> None:
    """The same seed gives the same; another seed and another epoch give others."""
    scene = T2.scaled(0.01)
    other = replace(scene, seed=1)
    np.testing.assert_array_equal(scene.draws(), scene.draws())
    np.testing.assert_array_equal(scene.sizes(), scene.sizes())
    assert (scene.draws() != other.draws()).any()
    assert (scene.sizes() != other.sizes()).any()
    assert (scene.draws()[0] != scene.draws()[1]).any()


def test_sizes_have_the_mean_and_the_deviation() -> None:
    """Within 1 % of 1 MB and of 0.1 MB."""
    assert T2.sizes().mean() == pytest.approx(1, rel=0.01)
    assert T2.sizes().std() == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(("name", "factor"), [("hdmlp-2", 1.06), ("hdmlp-4", 1.34)])
def test_clipped_sizes_raise_the_mean(name: str, factor: float) -> None:
    """No size is below 0; the mean of two scenarios grows by 6 and by 34 %."""
    scene = load_scene(name).scaled(0.01)
    assert scene.sizes().min() == 0
    assert scene.sizes().mean() / scene.mean_mb == pytest.approx(factor, abs=0.01)


@pytest.mark.slow
def test_the_lower_bound_of_scenario_2_follows_from_clipped_sizes() -> None:
    """423 s an epoch within 1 %, as the node with the largest share of a batch decides, not 345 s."""
    scene = replace(load_scene("hdmlp-2").scaled(0.1), epochs=1)
    draws = scene.draws()
    assert 10 * in_turn(scene, POLICIES["perfect"](scene, draws), draws)[-1] == pytest.approx(423, rel=0.01)


def test_storage_is_linear_between_readers_and_constant_outside() -> None:
    """Two and three readers are measured, five are not."""
    scene = replace(T2, storage_mb_s=((2, 80.0), (4, 100.0)))
    assert [scene.storage_rate(readers) for readers in (1, 2, 3, 4, 5)] == [80, 80, 90, 100, 100]
    assert scene.fetch_s(4) == 4 / 100
    assert replace(scene, client_mb_s=10).fetch_s(4) == 1 / 10


def test_a_scaled_scene_keeps_its_staging_buffer() -> None:
    """A tenth of samples, memory and disk, and the same batches."""
    small = T2.scaled(0.1)
    assert small.samples == 15_000
    assert small.room_mb == (1024, 5120, 10240)
    assert small.batch == T2.batch
    assert T2.scaled(1) == T2


@pytest.mark.parametrize("share", [0, -1, 1.5, math.nan])
def test_a_scale_out_of_range_is_refused(share: float) -> None:
    """Only a share of a scene can be simulated."""
    with pytest.raises(UsageError, match="above 0, at most 1"):
        T2.scaled(share)


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        ({"samples": 0}, "whole number from 1"),
        ({"epochs": 1.5}, "whole number from 1"),
        ({"nodes": True}, "whole number from 1"),
        ({"nodes": 3}, "multiple of 3"),
        ({"samples": 99}, "smaller batch"),
        ({"mean_mb": 0}, "above 0"),
        ({"mean_mb": math.inf}, "finite sizes"),
        ({"sd_mb": -1}, "finite sizes"),
        ({"train_mb_s": math.nan}, "above 0"),
        ({"decode_mb_s": "fast"}, "above 0"),
        ({"storage_ops_s": 0}, "above 0"),
        ({"seed": -1}, "from 0 on"),
        ({"threads": (1, 1)}, "equally many"),
        ({"threads": (1, 0, 1)}, "from 1 on"),
        ({"room_mb": (1, 1, -1)}, "from 0 on"),
        ({"room_mb": (1, 1, math.inf)}, "finite"),
        ({"local_mb_s": (1, 1, 0)}, "above 0"),
        ({"storage_mb_s": ()}, "pairs"),
        ({"storage_mb_s": ((2, 80), (1, 50))}, "rising"),
        ({"storage_mb_s": ((0, 80),)}, "from 1 on"),
        ({"storage_mb_s": ((1, 0),)}, "above 0"),
    ],
)
def test_a_wrong_number_is_refused_with_what_to_give(wrong: dict[str, Any], cure: str) -> None:
    """The message names the field and the cure."""
    with pytest.raises(UsageError, match=cure) as caught:
        replace(T2, **wrong)
    assert next(iter(wrong)).split("_")[0] in str(caught.value)


def test_a_file_is_a_scene(tmp_path: Path) -> None:
    """With tables of its own, and rules that differ."""
    file = tmp_path / "scene.toml"
    file.write_text(f"{FILE}\n[rules]\npeers = true\n\n[published]\nperfect = 25\n")
    scene = load_scene(file)
    assert (scene.samples, scene.rules.peers, scene.rules.plan_ahead) == (1000, True, True)
    assert scene.local_mb_s == (21164, math.inf)
    assert load_published(file) == {"perfect": 25}
    with pytest.raises(UsageError, match="give two local tiers, and disk_mb"):
        load_grid(file)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        (FILE + "epoch = 3", "epoch is unknown: give samples, .*epochs"),
        (FILE.replace("nodes = 4", ""), "nodes is missing"),
        (FILE + "[rules]\npeer = true", "peer is unknown: give .*peers"),
        (FILE + "[rules]\npeers = 1", "true or false"),
        (FILE + "rules = 1", r"give a table \[rules\]"),
        (FILE.replace("[[1, 66], [4, 146]]", "146"), "list of pairs"),
        (FILE.replace("[[1, 66], [4, 146]]", "[1, 146]"), "list of pairs"),
        (FILE.replace("[2, 2]", "2"), "lists of numbers"),
        (FILE.replace("batch = 100", "batch = 99"), "multiple of 4"),
        ("samples", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_what_to_give(tmp_path: Path, text: str, cure: str) -> None:
    """The message names the file."""
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=cure) as caught:
        load_scene(file)
    assert "wrong.toml" in str(caught.value)


def test_an_unknown_name_is_refused_with_those_that_ship() -> None:
    """The message lists them."""
    with pytest.raises(UsageError, match=r"path of a TOML file, or one of hdmlp-1, .*hdmlp-t4"):
        load_scene("hdmlp-t5")
