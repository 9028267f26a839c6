"""Would a server decide again as it did? Looks at a log that `brand serve --record` has written.

    python -m tests.tools.replay RECORD DST

The log and the data set are enough to look at a failure of a user's server. The log holds the bytes of samples only
where nodes fetch them by name.
"""

from __future__ import annotations

import sys

from brand.errors import BrandError
from brand.node.serve.recording import replay
from brand.node.setup.measure import pages_in
from brand.storage.dataset.dataset import StoredDataSet


def main(record: str, data_set: str) -> int:
    """Replay a log; the exit status, 1 where a decision differs or the log is none."""
    try:
        data = StoredDataSet(data_set)
        entries = replay(record, data, pages_in(data)[1])
    except BrandError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{entries:,} entries, and the same decisions\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tests.tools.replay RECORD DST")
    sys.exit(main(*sys.argv[1:]))
