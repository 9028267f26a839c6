"""How are files of the Hugging Face Hub read? Their URL is `hf://datasets/owner/name[@revision]/folder`.

huggingface_hub finds the token and resolves the revision to a commit. After that, reads are plain ranges of this
commit, so a data set that gets a new commit meanwhile does not change here.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from brand.errors import UsageError
from brand.stores.cloud import CloudStore, open_cloud
from brand.stores.reasons import failed, missing
from brand.stores.store import Entry, Traffic
from brand.stores.url import Url, parse_url

_NUMBERS: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")
_KINDS: Final = {"datasets": "dataset", "spaces": "space", "models": "model"}
_HOSTS: Final = ("hf.co", "huggingface.co")
"""The Hub's own hosts, to which it redirects reads."""


def open_hub(url: Url, traffic: Traffic, patience_s: float | None = None) -> CloudStore:
    """Return the store of a URL of the Hub; it is read-only. Raises `UsageError`."""
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.constants import ENDPOINT
    except ImportError:
        raise missing(url, "huggingface_hub", "huggingface_hub") from None
    kind, repository, revision, folder = _parts(url)
    with _asking(url):
        commit = HfApi().repo_info(repository, repo_type=kind, revision=revision, timeout=30).sha
        token = get_token()
    prefix = "" if kind == "model" else f"{url.host}/"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    base = parse_url("/".join(part for part in (f"{ENDPOINT}/{prefix}{repository}/resolve/{commit}", folder) if part))
    return open_cloud(base, traffic, patience_s, headers, _HOSTS, _HubLists(url.host, repository, str(commit), folder))


@dataclass(frozen=True)
class _HubLists:
    """Lists the files of a folder of one commit, for a `CloudStore`."""

    host: str
    repository: str
    commit: str
    folder: str

    def entries(self, folder: str) -> Iterator[Entry]:
        """Yield the files below a folder; none if there is no such folder."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        place = "/".join(part for part in (self.folder, folder) if part)
        begin = len(f"{self.folder}/") if self.folder else 0
        with suppress(EntryNotFoundError):
            tree = HfApi().list_repo_tree(
                self.repository, place or None, recursive=True, revision=self.commit, repo_type=_KINDS[self.host]
            )
            for file in tree:
                if isinstance(file, RepoFile):
                    yield _entry(file.path[begin:], file)

    def entry(self, name: str) -> Entry:
        """Return a file. Raises FileNotFoundError."""
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        path = f"{self.folder}/{name}" if self.folder else name
        found = HfApi().get_paths_info(self.repository, [path], revision=self.commit, repo_type=_KINDS[self.host])
        if not found or not isinstance(found[0], RepoFile):
            raise FileNotFoundError(errno.ENOENT, "there is no such file in the repository", f"{self.pinned()}/{name}")
        return _entry(name, found[0])

    def pinned(self) -> str:
        """Return the URL of the folder in this commit."""
        parts = (f"hf://{self.host}/{self.repository}@{self.commit}", self.folder)
        return "/".join(part for part in parts if part)


def _entry(name: str, file: Any) -> Entry:
    return Entry(name, file.size, file.lfs.sha256 if file.lfs else file.blob_id)


def list_files(url: Url) -> dict[str, int]:
    """Return path -> bytes of the files of a data set of the Hub.

    Paths are below the folder that the URL names; if it names Parquet files, those of these files below the repository.
    Without a connection, these are the files in the Hub's cache. Raises `UsageError`.
    """
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.hf_api import RepoFile
    except ImportError:
        raise missing(url, "huggingface_hub", "huggingface_hub") from None
    kind, repository, revision, folder = _parts(url)
    with _asking(url):
        try:
            tree = HfApi().list_repo_tree(repository, recursive=True, repo_type=kind, revision=revision)
            found = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
        except Exception:  # noqa: BLE001 - as in `_asking`
            root = Path(snapshot_download(repository, repo_type=kind, revision=revision, local_files_only=True))
            found = {
                path.relative_to(root).as_posix(): path.stat().st_size for path in root.rglob("*") if path.is_file()
            }
    if names_files(url):
        return {path: size for path, size in sorted(found.items()) if _matches(path, folder)}
    above = f"{folder}/" if folder else ""
    return {path.removeprefix(above): size for path, size in sorted(found.items()) if path.startswith(above)}


def download(url: Url, paths: Sequence[str]) -> Path:
    """Download files that `list_files` has listed into the Hub's cache, and return the folder that holds them.

    Cached files are not downloaded again. Raises `UsageError`.
    """
    from huggingface_hub import snapshot_download

    kind, repository, revision, folder = _parts(url)
    above = "" if names_files(url) else folder
    exact = [re.sub(r"([*?[])", r"[\1]", f"{above}/{path}" if above else path) for path in paths]
    with _asking(url):
        return Path(snapshot_download(repository, repo_type=kind, revision=revision, allow_patterns=exact), above)


def names_files(url: Url) -> bool:
    """Whether a URL of the Hub names Parquet files, by a pattern or one by its ending, and not a folder."""
    folder = _parts(url)[3]
    return folder.endswith((".parquet", ".pq")) or any(character in folder for character in "*?[{")


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern. Braces name each number from the first to the last."""
    braces = _NUMBERS.search(pattern)
    if braces is None:
        return fnmatch(path, pattern)
    before, after = re.escape(pattern[: braces.start()]), re.escape(pattern[braces.end() :])
    parts = [text.replace(r"\*", ".*").replace(r"\?", ".") for text in (before, after)]
    number = re.fullmatch(rf"{parts[0]}(\d+){parts[1]}", path)
    return (
        number is not None and len(number[1]) >= len(braces[1]) and int(braces[1]) <= int(number[1]) <= int(braces[2])
    )


@contextmanager
def _asking(url: Url) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the library raises those of several others
        why = failed(error, "").strerror
        raise UsageError(f"{url}: it is not on the Hub, or the Hub does not answer: {why}") from None


def _parts(url: Url) -> tuple[str, str, str | None, str]:
    """Return kind and name of a repository, the revision, and the folder in it. Raises `UsageError`."""
    kind = _KINDS.get(url.host)
    owner, _, rest = url.path.partition("/")
    name, _, folder = rest.partition("/")
    name, _, revision = name.partition("@")
    if kind is None or not owner or not name:
        raise UsageError(f"{url}: write hf://datasets/OWNER/NAME/FOLDER, or hf://datasets/OWNER/NAME@REVISION/FOLDER")
    return kind, f"{owner}/{name}", revision or None, folder
