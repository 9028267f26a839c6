"""Parquet files of a data set of the Hugging Face Hub: listed first, refused or chosen by their names, then downloaded.

Files are downloaded into the Hub's cache. Cached files are not downloaded again.
"""

from __future__ import annotations

from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.files import listed_file, of_source
from brand.chunker.importers.parquet import PARQUET_SUFFIXES, Parquet
from brand.chunker.importers.walk import is_data
from brand.chunker.plan.report import OnProgress, StageProgress
from brand.chunker.sources.card import CARD, CARD_ALONE, read_card
from brand.chunker.sources.splits import ALL
from brand.errors import UsageError, counted
from brand.stores.hub import download, list_files, names_files
from brand.stores.url import parse_url


def open_hub(src: str, choice: FieldMapping, on_progress: OnProgress) -> Parquet:
    """Return the source of a URL `hf://datasets/OWNER/NAME/FOLDER`; a folder, or a pattern of files.

    Nothing is downloaded before the files are known to be of one split. Raises `SourceError`, `UsageError`.
    """
    url = parse_url(src)
    every = list_files(url)
    found = {name: size for name, size in every.items() if name.lower().endswith(PARQUET_SUFFIXES) and _is_data(name)}
    if not found:
        raise UsageError(
            f"{src}: there is no Parquet file. `brand convert` images, audio, webdataset, jsonl and csv read others"
            " of the Hub; or load them with the package datasets, and pass them to brand.pack"
        )
    if names_files(url):
        if choice.split not in (None, ALL):
            raise UsageError(f"--split chooses among the files of a folder, and {src} names files: leave --split out")
        names = list(found)
    else:
        cards = [name for name in (CARD, CARD_ALONE) if name in every and choice.split != ALL]
        card = read_card(download(url, cards)) if cards else ("", "")
        names = of_source(src, card, sorted(found), lambda: list(every), PARQUET_SUFFIXES, choice.split).names
    size = sum(every[name] for name in names)
    on_progress(StageProgress("download", 0, len(names), 0, size))
    root = download(url, names)
    on_progress(StageProgress("download", len(names), len(names), size, size))
    files = [listed_file(root, name, "the Hub") for name in names]
    return Parquet(files, choice, notes=[f"{counted(len(files), 'file')} of the Hub, {size:,} bytes"])


def _is_data(name: str) -> bool:
    return all(is_data(part, underscore=False) for part in name.split("/"))
