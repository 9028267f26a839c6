"""`brand simulate`: what it prints, its JSON, and what is wrong use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brand.simulate import whatif
from brand.storage.dataset.dataset import StoredDataSet
from tests.support import brand

IMAGINED = "--samples", "20000", "--mean-bytes", "100kB"
SMALL = "--samples", "2000", "--mean-bytes", "100kB"
WITH_FOLDERS = *("--order", "uniform", "--memory", "0.1", "--nodes", "4"), *("--cache", "0.2", "--storage", "hdd")
FOLDERS = "--order", "uniform", "--memory", "0.1", "--cache", "0.2", "--storage", "hdd"


def test_a_data_set_is_simulated_with_its_sizes(photos_set: Path) -> None:
    """The first epoch reads all of it."""
    found = brand("simulate", photos_set, "--memory", "0.5", "--storage", "nas", "--json").json
    (row,) = found["rows"]
    first = row["epochs"][0]
    assert first["read_bytes"] == found["stored_bytes"]
    assert first["seconds"] >= found["stored_bytes"] / 120e6


def test_each_value_makes_a_row() -> None:
    """All combinations, in the order in which they are given."""
    rows = brand("simulate", *IMAGINED, "--memory", "0.1,1GB", "--nodes", "1,2", "--json").json["rows"]
    assert [(row["memory"], row["nodes"]) for row in rows] == [("0.1", "1"), ("0.1", "2"), ("1GB", "1"), ("1GB", "2")]


def test_the_table_names_what_sets_the_pace() -> None:
    """And which row is enough."""
    out = brand("simulate", *IMAGINED, "--storage", "nas,nvme", "--train", "3000").out
    assert "Training alone takes 6.7 s an epoch" in out
    assert [line.split()[-1] for line in out.splitlines() if line.lstrip().startswith("n")] == ["storage", "training"]
    assert "With storage nvme later epochs come within 0% of training alone" in out


def test_without_a_training_no_row_is_called_enough() -> None:
    """Also where memory holds everything, so that later epochs take no time at all."""
    told = brand("simulate", *IMAGINED, "--memory", "0.1,1.0")
    assert told.code == 0, told.err
    assert "of training alone" not in told.out


def test_a_storage_that_was_not_measured_is_said() -> None:
    """It is a network drive then."""
    assert "The storage was not measured" in brand("simulate", *IMAGINED).out
    assert "The storage was not measured" not in brand("simulate", *IMAGINED, "--storage", "nas").out


def test_a_cache_folder_spares_the_storage() -> None:
    """Later epochs read from the folder what it holds; the first one fills it."""
    asked = "--storage", "nas", "--memory", "0.1", "--cache", "0,500MB,1.0", "--json"
    none, some, all_ = brand("simulate", *IMAGINED, *asked).json["rows"]
    assert none["epochs"][0] == some["epochs"][0] == all_["epochs"][0]
    assert [row["epochs"][1]["cache_bytes"] for row in (none, some)] == [0, pytest.approx(500e6, rel=0.01)]
    assert all_["epochs"][1]["reads"] == 0
    assert none["later_epoch_s"] > some["later_epoch_s"] > all_["later_epoch_s"]
    assert "from cache" in brand("simulate", *IMAGINED, *asked[:-1]).out
    assert "from cache" not in brand("simulate", *IMAGINED).out


def test_a_cache_folder_on_a_slow_disk_is_not_used() -> None:
    """The table says so."""
    asked = "--storage", "nvme", "--cache", "1.0", "--cache-storage", "hdd"
    assert "no faster than the storage" in brand("simulate", *IMAGINED, *asked).out
    assert brand("simulate", *IMAGINED, *asked, "--json").json["rows"][0]["epochs"][1]["cache_reads"] == 0


@pytest.mark.slow
def test_servers_that_are_alone_read_what_their_ranks_fetch() -> None:
    """Nothing is sent, and memory and folders hold other samples after each epoch. The default follows the ranks."""
    alone = "--servers", "connected,alone", "--placement", "even,frequency,next,auto"
    rows = brand("simulate", *SMALL, *WITH_FOLDERS, "--epochs", "6", *alone, "--json").json["rows"]
    assert len({row["epochs"][-1]["read_bytes"] for row in rows[:4]}) == 1  # connected: even
    even, frequency, follows, auto = (sum(epoch["read_bytes"] for epoch in row["epochs"]) for row in rows[4:])
    assert rows[0]["epochs"][-1]["read_bytes"] * 6 < follows == auto < frequency < even < 6 * 2000 * 100_000
    assert all(epoch["sent_bytes"] == 0 for row in rows[4:] for epoch in row["epochs"])
    out = brand("simulate", *SMALL, *WITH_FOLDERS, "--epochs", "6", *alone).out
    assert "The cache folders of connected servers use the placement even" in out


def test_the_row_of_servers_that_are_alone_is_the_mean_of_later_epochs() -> None:
    """Their epochs differ: with the placement next, a good epoch and a bad one take turns."""
    told = (*IMAGINED, *WITH_FOLDERS, "--epochs", "5", "--servers", "alone", "--placement", "next")
    (row,) = brand("simulate", *told, "--json").json["rows"]
    reads = [epoch["reads"] for epoch in row["epochs"][1:]]
    assert len(set(reads)) > 1
    assert f" {round(sum(reads) / 4):,} " in brand("simulate", *told).out


def test_one_node_may_follow_its_ranks() -> None:
    """It draws everything, so the next use is as good as a random choice, and `--servers` says nothing of it."""
    even, follows = brand("simulate", *SMALL, *FOLDERS, "--placement", "even,next", "--json").json["rows"]
    assert follows["epochs"][-1]["read_bytes"] == pytest.approx(even["epochs"][-1]["read_bytes"], rel=0.05)


def test_prices_count_reads_bytes_and_hours() -> None:
    """Of a later epoch, over all nodes."""
    prices = "--price-reads", "2", "--price-gb", "3", "--price-hour", "3600"
    (row,) = brand("simulate", *IMAGINED, "--nodes", "2", *prices, "--json").json["rows"]
    last = row["epochs"][-1]
    reads = (last["reads"] + last["direct"]) / 1000
    assert row["price"] == pytest.approx(2 * reads + 3 * last["read_bytes"] / 1e9 + 2 * row["later_epoch_s"])


def test_many_equal_samples_are_answered_by_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are those of the whole."""
    asked = "--samples", "200001", "--mean-bytes", "10kB", "--epochs", "2", "--json"
    (whole,) = brand("simulate", *asked).json["rows"]
    monkeypatch.setattr(whatif, "MOST", 1 << 16)
    (parts,) = brand("simulate", *asked).json["rows"]
    assert parts["order"]["samples"] == 50001
    for epoch in range(2):
        assert parts["epochs"][epoch]["reads"] == pytest.approx(whole["epochs"][epoch]["reads"], rel=0.01)
        assert parts["epochs"][epoch]["seconds"] == pytest.approx(whole["epochs"][epoch]["seconds"], rel=0.01)


def test_the_baselines_are_simulated_beside_the_default() -> None:
    """Each reads what memory does not keep: pools by whole chunks, `uniform` by single samples."""
    asked = "--memory", "0.5", "--order", "stripes,pool:8,uniform", "--epochs", "2", "--json"
    stripes, pool, uniform = (row["epochs"][1] for row in brand("simulate", *IMAGINED, *asked).json["rows"])
    assert uniform["reads"] == uniform["read_samples"]
    assert pool["reads"] < stripes["reads"] < uniform["reads"]
    for row in (stripes, pool, uniform):
        assert row["direct"] == 0
        assert 0.45 * 20000 <= row["read_samples"] <= 0.75 * 20000


def test_an_evaluation_reads_each_sample_once_less_what_memory_keeps() -> None:
    """Its reads are as large as those of a training."""
    asked = "--memory", "0.5", "--order", "storage,stripes", "--epochs", "2", "--json"
    stored, shuffled = (row["epochs"][1] for row in brand("simulate", *IMAGINED, *asked).json["rows"])
    assert stored["direct"] == 0
    assert 0.45 * 20000 <= stored["read_samples"] <= shuffled["read_samples"]
    assert stored["reads"] <= shuffled["reads"]


@pytest.mark.slow
def test_a_part_has_its_part_of_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four parts have a quarter of its chunks each."""
    asked = "--samples", "200001", "--mean-bytes", "10kB", "--order", "pool:8", "--epochs", "2", "--json"
    assert brand("simulate", *asked).json["rows"][0]["order"]["pool"] == 8
    monkeypatch.setattr(whatif, "MOST", 1 << 16)
    assert brand("simulate", *asked).json["rows"][0]["order"]["pool"] == 2


def test_weights_and_a_subset_of_a_data_set(photos_set: Path, tmp_path: Path) -> None:
    """Weights by class and by sample may be the same ones. A subset is no more than its bytes."""
    classes = StoredDataSet(photos_set).classes or []
    np.save(tmp_path / "w.npy", 1 + StoredDataSet(photos_set).column("label"))
    by_class = ",".join(f"{name}={number}" for number, name in enumerate(classes, 1))
    asked = "--memory", "0.5", "--batch", "4", "--num-samples", "90", "--json", "--weights"
    rows = [brand("simulate", photos_set, *asked, each).json["rows"][0] for each in (by_class, tmp_path / "w.npy")]
    assert rows[0]["epochs"] == rows[1]["epochs"]
    assert rows[0]["weights"] == by_class
    found = brand("simulate", photos_set, "--memory", "1.0", "--subset", "label == 0", "--json").json
    first, later, _ = (epoch["read_bytes"] for epoch in found["rows"][0]["epochs"])
    assert 0 < first <= found["stored_bytes"]
    assert later == 0


def test_a_group_reads_as_one_rank_and_decodes_in_each() -> None:
    """Eight ranks in groups of four are two ranks for the server."""
    asked = *IMAGINED, "--storage", "nas", "--decode", "10", "--json"
    groups = brand("simulate", *asked, "--ranks", "8", "--replication", "4").json["rows"][0]["epochs"]
    ranks = brand("simulate", *asked, "--ranks", "2").json["rows"][0]["epochs"]
    for group, rank in zip(groups, ranks, strict=True):
        assert (group["reads"], group["read_bytes"]) == (rank["reads"], rank["read_bytes"])
        assert group["decoding"] == pytest.approx(4 * rank["decoding"])


def test_planned_batches_of_a_data_set(photos_set: Path, tmp_path: Path) -> None:
    """Lengths are a field or an array. Batches of three samples, or rows of tokens."""
    np.save(tmp_path / "lengths.npy", StoredDataSet(photos_set).column("label"))
    asked = "simulate", photos_set, "--memory", "0.5", "--json", "--length"
    rows = [brand(*asked, each, "--batch", "3").json["rows"][0] for each in ("label", tmp_path / "lengths.npy")]
    assert rows[0]["epochs"] == rows[1]["epochs"]
    packed = brand(*asked, "label", "--tokens-per-row", "4", "--rows-per-batch", "2").json["rows"][0]
    assert packed["epochs"][0]["read_bytes"] > 0
    assert brand(*asked, "label", "--batch-length", "9").json["rows"][0]["epochs"][0]["read_bytes"] > 0


def test_the_members_of_a_mixture_add_up(photos_set: Path) -> None:
    """Two members of equal weight read twice what one reads. A member of weight 0 reads nothing."""
    alone, both = (
        brand("simulate", *members, "--memory", "1.0", "--epochs", "2", "--num-samples", samples, "--json").json
        for members, samples in (
            (("--member", f"{photos_set}=1", "--member", f"{photos_set}=0"), "31"),
            (("--member", f"{photos_set}=1", "--member", f"{photos_set}=1"), "62"),
        )
    )
    assert alone["samples"] == both["samples"] == 62
    one, two = (found["rows"][0]["epochs"][0]["read_bytes"] for found in (alone, both))
    assert 0 < 2 * one == two


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        (("--weights", "equal"), "give balanced, a file FILE.npy"),
        (("--weights", "animals=1"), "weights= has nothing for 4 classes"),
        (("--weights", "balanced", "--nodes", "2", "--servers", "alone"), "leave out --servers"),
        (("--length", "label", "--weights", "balanced"), "leave out --weights"),
        (("--length", "label", "--tokens-per-row", "9"), "--tokens-per-row and --rows-per-batch"),
        (("--length", "key"), "length='key'"),
        (("--batch-length", "9"), "give --length, too"),
        (("--member", "photos.brand=1"), "leave out DST"),
        (("--ranks", "4", "--replication", "3"), "a multiple of the replication"),
        (("--subset", "label < 3", "--cache", "1GB"), "leave out --cache"),
        (("--num-samples", "9"), "give --weights or --member, too"),
        (("--job", "1", "--weights", "balanced"), "leave out --weights"),
    ],
)
def test_weights_that_cannot_be_simulated(photos_set: Path, wrong: tuple[str, ...], cure: str) -> None:
    """The message says what to give, or what to leave out."""
    found = brand("simulate", photos_set, *wrong)
    assert found.code == 2
    assert cure in found.err


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    """With matplotlib."""
    pytest.importorskip("matplotlib")
    plot = tmp_path / "rows.svg"
    assert brand("simulate", *IMAGINED, "--memory", "0.1,0.5", "--plot", plot).code == 0
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        ((), "--samples 1000000 --mean-bytes 110kB"),
        (("--samples", "10"), "--mean-bytes"),
        ((*IMAGINED, "--memory", "0"), "--memory 0 has no unit: give a size such as '8GB', or a share"),
        ((*IMAGINED, "--memory", "0.5,1"), "--memory 1 has no unit"),
        ((*IMAGINED, "--memory", "2XB"), "--memory"),
        ((*IMAGINED, "--cache", "-1"), "--cache -1 has no unit"),
        ((*IMAGINED, "--cache", "all"), "--cache"),
        ((*IMAGINED, "--cache", "1GB", "--cache-storage", "tape"), "--cache-storage tape: give nvme, nas, hdd, s3"),
        ((*IMAGINED, "--mean-bytes", "much"), "--mean-bytes"),
        ((*IMAGINED, "--storage", "tape"), "nvme, nas, hdd, s3"),
        ((*IMAGINED, "--storage", "-1"), "MB/s"),
        ((*IMAGINED, "--order", "fifo"), "stripes, slots, uniform, storage, or pool:8"),
        ((*IMAGINED, "--order", "pool:0"), "pool:8 for pools of 8 chunks"),
        ((*IMAGINED, "--order", "pool"), "pool:8 for pools of 8 chunks"),
        ((*IMAGINED, "--order", "minio"), "pool:8 for pools of 8 chunks"),
        ((*IMAGINED, "--order", "pool:1000000"), "a pool has at most"),
        ((*IMAGINED, "--stripe", "0"), "1 or more"),
        ((*IMAGINED, "--stripe", "4", "--order", "slots"), "belongs to order stripes"),
        ((*IMAGINED, "--stripe", "4", "--order", "pool:8"), "belongs to order stripes"),
        ((*IMAGINED, "--nodes", "two"), "1 or more"),
        ((*IMAGINED, "--nodes", "2", "--servers", "apart"), "--servers apart: give connected or alone"),
        ((*IMAGINED, "--servers", "alone"), "give --nodes, too"),
        ((*IMAGINED, "--cache", "0.2", "--placement", "lru"), "give auto, even, next or frequency"),
        ((*IMAGINED, "--placement", "next"), "give --cache, too"),
        ((*IMAGINED, "--nodes", ",".join(["1"] * 101)), "fewer values"),
        ((*IMAGINED, "--plot", "rows.txt"), ".png, .svg, .pdf"),
        ((*IMAGINED, "--weights", "balanced"), "needs the columns of a data set"),
        (("photos.brand", *IMAGINED), "leave out DST"),
    ],
)
def test_wrong_use_says_what_to_give(wrong: tuple[str, ...], cure: str) -> None:
    """With exit code 2."""
    found = brand("simulate", *wrong)
    assert found.code == 2
    assert cure in found.err


def test_the_share_of_a_node_is_refused(photos_set: Path, tmp_path: Path) -> None:
    """Its sizes say nothing of what the other nodes read."""
    shares = tmp_path / "0", tmp_path / "1"
    assert brand("partition", photos_set, *shares, "--nodes", "2").code == 0
    found = brand("simulate", shares[0])
    assert found.code == 2
    assert "is the partition of node 0 of 2: simulate the whole data set" in found.err
