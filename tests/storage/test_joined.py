"""The parts of a collection as one data set: places, holes, rows, columns, and what is damaged."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from brand.collect import NamedSamples, compact, delete
from brand.errors import (
    BrandError,
    ChecksumError,
    DeletedError,
    ForeignFileError,
    FormatError,
    LayoutError,
    MissingFileError,
    NotADataSetError,
    SchemaError,
)
from brand.formats.constants import NOTHING, SAMPLES_NAME, chunk_name
from brand.formats.publish import publish_bytes
from brand.formats.version import make_version, npy_list, pack_version, read_version, version_name
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.location import Collected
from brand.storage.maintenance.verify import verify
from tests.collect.support import grow, samples
from tests.support import open_below

SIZES = (20, 3, 13)
"""In chunks of 8: the last chunk of each part is short."""
COUNT = sum(SIZES)
DELETED = (2, 20, 21, 22, 35)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts; some samples deleted, the middle part's all, and written again without them. Not to be changed."""
    folder = tmp_path_factory.mktemp("joined") / "all"
    first = 0
    for size in SIZES:
        grow(folder, first, size)
        first += size
    delete(folder, NamedSamples(indices=DELETED[:4]))
    compact(folder)
    delete(folder, NamedSamples(indices=DELETED[4:]))
    return folder


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "own"))


def test_each_index_leads_to_its_sample_and_back(made: Path) -> None:
    """Exact reads in any order; places and indices are each other's inverse; deleted ones have none."""
    data, wanted = StoredDataSet(made), samples(0, COUNT)
    present = data.present()
    assert present.tolist() == [index for index in range(COUNT) if index not in DELETED]
    order = np.random.default_rng(0).permutation(present)
    assert data.samples(order) == [wanted[index] for index in order]
    places = data.places(order)
    assert np.array_equal(data.indices(places), order)
    assert len(set(places.tolist())) == len(order)


def test_a_place_without_a_sample_is_an_empty_row_and_never_drawn(made: Path) -> None:
    """Holes at the ends of parts: no bytes, at the end of their chunk, with an index that no sample has."""
    data = StoredDataSet(made)
    drawn = data.drawn()
    assert drawn is not None
    rows = data.rows(0, data.header.samples)
    assert len(rows) == data.header.samples == len(drawn)
    holes = rows[rows["index"] == np.iinfo(np.uint64).max]
    assert len(holes) > 0
    assert holes["size"].max() == 0
    assert np.count_nonzero(drawn) == COUNT - len(DELETED)
    assert sorted(rows["index"][drawn].tolist()) == data.present().tolist()
    for chunk in range(data.header.chunks):
        mine = rows[chunk * 8 : chunk * 8 + 8]
        ends = mine["offset"] + mine["size"]
        assert (mine["offset"][1:] == ends[:-1]).all()
        assert int(ends[-1]) == data.chunk_rows["file_size"][chunk]


def test_the_places_of_a_subset(made: Path) -> None:
    """They are those of its samples. The data set has holes and deleted samples."""
    data = StoredDataSet(made)
    rng = np.random.default_rng(1)
    for count in range(len(data.present()) + 1):
        chosen = rng.permutation(data.present())[:count]
        assert np.flatnonzero(data.places_of(chosen)).tolist() == sorted(data.places(chosen).tolist())
    with pytest.raises(DeletedError, match="sample 20 was deleted"):
        data.places_of(np.arange(20, 26))


@pytest.mark.parametrize("index", DELETED)
def test_a_deleted_sample_is_refused(made: Path, index: int) -> None:
    """Whether its bytes are there or not. The error is no IndexError, which would end a loop in silence."""
    with pytest.raises(DeletedError, match=rf"all@\d: sample {index} was deleted") as caught:
        StoredDataSet(made).sample(index)
    assert not isinstance(caught.value, IndexError)
    assert pickle.loads(pickle.dumps(caught.value)).sample == index


def test_columns_say_nothing_of_deleted_samples(made: Path) -> None:
    """The least whole number, and NaN."""
    data, wanted = StoredDataSet(made), samples(0, COUNT)
    numbers, shares = data.column("number"), data.column("share")
    for index in range(COUNT):
        if index in DELETED:
            assert numbers[index] == NOTHING["int"]
            assert np.isnan(shares[index])
        else:
            assert (numbers[index], shares[index]) == (wanted[index]["number"], wanted[index]["share"])
    with pytest.raises(SchemaError, match="columns: number, share"):
        data.column("data")
    with pytest.raises(SchemaError, match="no field 'x'"):
        data.column("x")


def test_a_version_is_named_and_pinned(made: Path) -> None:
    """A path is the present version, and stays it in a pickled copy; a number names any; a wrong one is told."""
    data, old = StoredDataSet(made), StoredDataSet(f"{made}@2")
    assert data.version is not None
    assert (data.version.number, data.name) == (6, f"{made}@6")
    assert (len(old), old.deleted is not None and len(old.deleted)) == (23, 0)
    assert old.sample(21) == samples(21, 1)[0]
    assert pickle.loads(pickle.dumps(old)).id == old.id
    with pytest.raises(MissingFileError, match="no version 9: the versions are 1, 2, 3, 4, 5, 6"):
        StoredDataSet(f"{made}@9")
    with pytest.raises(NotADataSetError, match="no such folder"):
        StoredDataSet(f"{made}x@1")


def test_a_single_whole_part_is_a_plain_data_set(tmp_path: Path) -> None:
    """Nothing is left out, so orders are those of the part itself."""
    grow(tmp_path / "all", 0, 19)
    data = StoredDataSet(tmp_path / "all")
    assert data.drawn() is None
    (part,) = (tmp_path / "all" / "parts").iterdir()
    assert np.array_equal(data.rows(0, 19), StoredDataSet(part).rows(0, 19))


def test_chunks_are_counted_through(made: Path) -> None:
    """Chunk `k` of the version is a file of one of the parts; the middle part has none."""
    data = StoredDataSet(made)
    assert isinstance(data.location, Collected)
    files = [data.location.chunk_file(number) for number in range(data.header.chunks)]
    assert len(set(files)) == len(files) == 5
    for number, file in enumerate(files):
        size = Path(file).stat().st_size
        assert size == data.chunk_rows["file_size"][number] == data.location.chunk_bytes(number)
        assert size == data.open_chunk(number).preamble.file_size


def test_a_flipped_byte_is_found_and_named(own: Path) -> None:
    """By an exact read, with the part's file and the public index; and by verify."""
    data = StoredDataSet(own)
    index = int(data.present()[-1])
    row = data.rows_at(data.places(np.array([index])))[0]
    file = Path(data.location.chunk_file(data.chunk_of(index)))
    content = bytearray(file.read_bytes())
    content[int(row["offset"])] ^= 1
    file.write_bytes(content)
    with pytest.raises(ChecksumError) as caught:
        StoredDataSet(own).sample(index)
    assert (caught.value.sample, caught.value.path) == (index, file)
    assert len([error for step in verify(own) for error in step.errors]) == 1


def test_an_index_that_differs_from_the_tables_is_found(own: Path) -> None:
    """Two rows of a part's index exchanged, consistently in both halves."""
    data = StoredDataSet(own)
    part = Path(data.location.chunk_file(0)).parent.parent
    rows, place = np.load(part / SAMPLES_NAME), np.load(part / "index/place.npy")
    one, two = rows["index"][:2].tolist()
    rows["index"][:2] = two, one
    place[[one, two]] = place[[two, one]]
    for name, values in ((SAMPLES_NAME, rows), ("index/place.npy", place)):
        head = (part / name).read_bytes()[: -values.nbytes]
        (part / name).write_bytes(head + values.tobytes())
    index = int(StoredDataSet(own).rows(0, 1)["index"][0])
    with pytest.raises(LayoutError, match="differs from the chunk's table"):
        StoredDataSet(own).sample(index)


def test_a_missing_chunk_or_part_is_named(own: Path) -> None:
    """The part's own file."""
    data = StoredDataSet(own)
    file = Path(data.location.chunk_file(data.header.chunks - 1))
    file.unlink()
    wrong = [error for step in verify(own) for error in step.errors]
    assert [type(error) for error in wrong] == [MissingFileError]
    assert wrong[0].path == file
    shutil.rmtree(file.parent.parent)
    with pytest.raises(NotADataSetError, match="no such folder"):
        StoredDataSet(own)
    assert any(isinstance(error, NotADataSetError) for step in verify(own) for error in step.errors)


@pytest.mark.parametrize("damage", ["gone", "flipped", "longer"])
def test_a_damaged_list_is_refused(own: Path, damage: str) -> None:
    """Otherwise deleted samples could come back."""
    version = StoredDataSet(own).version
    assert version is not None
    assert version.deleted is not None
    file = own / version.deleted.name
    if damage == "gone":
        file.unlink()
    elif damage == "flipped":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(file.read_bytes() + bytes(1 << 17))
    with pytest.raises(FormatError):
        StoredDataSet(own)
    assert [error for step in verify(own) for error in step.errors]


@pytest.mark.parametrize("values", [[5, 5], [5, 4], [99], [1 << 63]])
def test_indices_that_do_not_rise_or_fit_are_refused(own: Path, values: list[int]) -> None:
    """In a list that is rightly named."""
    listed, data = npy_list(np.array(values, "<u8"))
    (own / listed.name).write_bytes(data)
    old = read_version(own, 3)
    new = make_version(old.collection, 7, old.parts, listed, {}, old.id, "hostile")
    publish_bytes(own / version_name(7), pack_version(new))
    with pytest.raises(LayoutError, match="do not rise"):
        StoredDataSet(own)


def test_an_absent_index_is_deleted(own: Path) -> None:
    """A version that says otherwise is refused: its sample could neither be read nor be left out."""
    old = read_version(own, 6)
    new = make_version(old.collection, 7, old.parts, None, {}, old.id, "hostile")
    publish_bytes(own / version_name(7), pack_version(new))
    with pytest.raises(LayoutError, match="not deleted"):
        StoredDataSet(own)


def test_a_part_under_anothers_name_is_refused(own: Path) -> None:
    """Two parts exchanged."""
    one, two = (own / part.name for part in read_version(own, 2).parts)
    one.rename(own / "x")
    two.rename(one)
    (own / "x").rename(two)
    with pytest.raises(ForeignFileError, match="with the name of another segment"):
        StoredDataSet(f"{own}@1")


def test_a_folder_with_an_at_sign_is_a_folder(tmp_path: Path) -> None:
    """A path that is there is taken as it is."""
    grow(tmp_path / "all", 0, 5)
    (part,) = (tmp_path / "all" / "parts").iterdir()
    shutil.copytree(part, tmp_path / "all@1")
    assert StoredDataSet(tmp_path / "all@1").version is None


def test_a_collection_without_a_version_says_so(tmp_path: Path) -> None:
    """Its first append has not ended."""
    (tmp_path / "versions").mkdir()
    with pytest.raises(BrandError, match="brand append"):
        StoredDataSet(tmp_path)


def test_the_chunk_names_are_those_of_parts(made: Path) -> None:
    """Nothing of a collection is in files of its own."""
    names = {path.name for path in made.iterdir()}
    assert names == {"versions", "parts", "lists", "staging", "lock", "present"}
    assert not (made / chunk_name(0)).exists()


def test_each_segment_takes_two_descriptors(tmp_path: Path) -> None:
    """So 256 segments fit into the usual limit of 1,024, with as many chunk files."""
    few, many = tmp_path / "few", tmp_path / "many"
    for folder, appends in ((few, 3), (many, 9)):
        for number in range(appends):
            grow(folder, 100 * number, 4)
    kept = list[StoredDataSet]()
    for folder, appends in ((few, 3), (many, 9)):
        kept.append(StoredDataSet(folder))
        places = kept[-1].places(np.arange(len(kept[-1])))
        assert kept[-1].indices(places).tolist() == list(range(len(kept[-1])))
        assert open_below(folder) == 2 * appends
