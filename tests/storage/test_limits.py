"""Numbers that claim gigabytes: each read runs in a process of its own that may not use much more memory."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.formats.test_chunk import header, whole_chunk
from tests.storage.support import chunk
from tests.support import LIMIT_S
from tests.tools.forge import put_together, set_preamble, sign_files, sign_index, table, take_apart

pytestmark = pytest.mark.slow

HUGE = 2**32 - 1
EMPTY_FRAME_OF_4_GIB = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", HUGE) + b"\x01\x00\x00"

SCRIPT = """
import resource, sys
from pathlib import Path
from brand.errors import FormatError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.verify import verify

what, folder = sys.argv[1], Path(sys.argv[2])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20,) * 2)
try:
    if what == "read":
        StoredDataSet(folder).sample(int(sys.argv[3]))
    elif what == "verify":
        for step in verify(folder):
            for error in step.errors:
                raise error
    else:
        reindex(folder)
except FormatError as error:
    print(type(error).__name__)
except BaseException as error:
    print("crash:", type(error).__name__, error)
else:
    print("nothing")
"""


def outcome(what: str, folder: Path, index: int = 0) -> str:
    """The class of the error that reading, verifying or indexing again gives in little memory."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, what, str(folder), str(index)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_index_that_claims_a_sample_of_4_gib_allocates_nothing(plain: Path) -> None:
    """Rows and chunk sizes agree with each other, and not with the file: the file is asked before the memory is."""
    rows, chunks = np.load(plain / "index/samples.npy"), np.load(plain / "index/chunks.npy")
    rows["size"][5] = rows["raw_size"][5] = HUGE
    chunks["file_size"] = 2**40
    np.save(plain / "index/samples.npy", rows)
    np.save(plain / "index/chunks.npy", chunks)
    sign_files(plain)
    assert outcome("read", plain, int(rows["index"][5])) in ("OversizedError", "TruncatedError", "ForeignFileError")
    assert outcome("verify", plain) == "ForeignFileError"


def test_a_frame_that_claims_4_gib_is_a_decode_error(dense: Path) -> None:
    """A sample of 12 bytes that says it unpacks to 4 GiB, which row and frame agree upon."""
    parts = take_apart(chunk(dense, 1))
    parts.samples[1].data, parts.samples[1].raw_size = EMPTY_FRAME_OF_4_GIB, HUGE
    put_together(chunk(dense, 1), parts)
    sign_index(dense)
    assert outcome("read", dense, parts.samples[1].index) == "DecodeError"
    assert outcome("verify", dense) == "DecodeError"
    assert outcome("reindex", dense) == "DecodeError"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"header_size": HUGE}, "OversizedError"), ({"dictionary_size": HUGE}, "OversizedError"),
        ({"samples": HUGE}, "OversizedError"), ({"samples": 1 << 24}, "LayoutError"),
        ({"file_size": 2**50}, "TruncatedError"),
    ],
)  # fmt: skip
def test_a_preamble_that_claims_gigabytes_allocates_nothing(plain: Path, fields: dict[str, int], kind: str) -> None:
    """Limits and the file's size come first."""
    set_preamble(chunk(plain, 1), **fields)
    assert outcome("verify", plain) == kind
    assert outcome("reindex", plain) == kind


def test_a_chunk_that_claims_many_others_reserves_no_room_for_them(tmp_path: Path) -> None:
    """One chunk of one sample that says it is the first of 10^8: their absence is noticed before 5 GB are reserved."""
    (tmp_path / "chunks").mkdir()
    chunk(tmp_path, 0).write_bytes(whole_chunk([5], header(10**8, 1)))
    assert outcome("reindex", tmp_path) == "MissingFileError"


def test_the_harness_lets_good_data_sets_pass(plain: Path) -> None:
    """The limits above do not get in the way of what is whole."""
    assert [outcome(what, plain) for what in ("read", "verify", "reindex")] == ["nothing"] * 3
    assert table(chunk(plain, 0)).shape == (4,)
