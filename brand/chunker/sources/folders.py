"""Which files are in an image or audio folder, and which index and label does each file get?

Order and labels are those of torchvision's `ImageFolder`: classes are the top-level folders, sorted; within a class
the folders by path, within a folder the files by name. Files directly in the folder make an unlabelled (flat)
set. A file that cannot be used becomes a `Problem` with its reason; it is never dropped in silence. Hidden files (a
leading dot) and files that file managers leave behind are ignored. Memory holds the names of one class folder at a
time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import OnProgress, Problem, StageProgress
from brand.chunker.sources.listing import SIDECARS, Listing, ListingWriter, SourceFile
from brand.errors import SourceError, UsageError, counted
from brand.formats.constants import MANIFEST_NAME, VERSIONS_NAME
from brand.formats.version import collection_of
from brand.printable import printable

IGNORED: Final = frozenset({"Thumbs.db", "desktop.ini", "__MACOSX"})
_FILES_A_STEP: Final = 4096
_NOT_UTF8: Final = "the name is not valid UTF-8; rename it (convmv does a whole folder)"


@dataclass(kw_only=True)
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    empty_folders: list[str] = field(default_factory=list)
    lost_sidecars: list[str] = field(default_factory=list)
    """Transcripts next to audio files that cannot be used."""
    ignored: int = 0


@dataclass
class ScannedFolder(_Findings):
    """The result of a scan."""

    root: Path
    listing: Listing
    classes: tuple[str, ...] | None


def check_folder(root: Path) -> None:
    """Raise `UsageError` if a source is not a folder, or is a data set already."""
    if not root.is_dir():
        check_unconverted(root)
        raise UsageError(f"{root}: there is no such folder" if not root.exists() else f"{root} is a file, not a folder")
    check_unconverted(root)


def check_unconverted(root: Path) -> None:
    """Raise `UsageError` if a source is a data set already, or a version of a collection."""
    if collection_of(root) is not None:
        raise UsageError(f"{root} is a version of a collection, which is converted already: BrandDataset reads it")
    if (root / VERSIONS_NAME).is_dir() and not (root / MANIFEST_NAME).exists() and (root / "parts").is_dir():
        raise UsageError(f"{root} is a collection, which is converted already: BrandDataset reads it")
    if (root / MANIFEST_NAME).is_file():
        how = "BrandDataset reads it, and `brand unpack` restores the folder that it was made from"
        raise UsageError(f"{root} is a converted data set already: {how}")


def scan_folder(
    root: Path,
    work: Path,
    options: Options,
    *,
    sidecars: Sequence[str] = (),
    exclude: Path | None = None,
    on_progress: OnProgress,
) -> ScannedFolder:
    """List a folder's files into `work`. `exclude` is a file that is not a sample (a table of transcripts).

    `sidecars` are suffixes: a file with one of them belongs to the sample whose name it has, up to the suffix.

    Raises `UsageError` if there are files next to class folders, `SourceError` if the folder holds no files.
    """
    scan = _Scan(root, tuple(sidecars), options.follow_links, exclude.resolve() if exclude else None)
    tops = scan.class_folders() if options.with_labels else [""]
    known = options.classes  # they have the first numbers, whether the folder has them or not
    classes = None if tops == [""] else (*known, *(top for top in tops if top not in known))
    label_of = {"": -1} if classes is None else {name: label for label, name in enumerate(classes)}
    writer, total = ListingWriter(work), 0
    for top in tops:
        batch: list[SourceFile] = []
        for file in scan.files_below(top, label_of[top]):
            batch.append(file)
            total += file.size
            if len(batch) == _FILES_A_STEP:
                writer.add(batch)
                batch = []
                on_progress(StageProgress("scan", writer.count, None, total, None))
        writer.add(batch)
    listing = writer.close()
    on_progress(StageProgress("scan", len(listing), len(listing), total, total))
    if not len(listing) and not scan.problems:
        raise SourceError(str(root), "there are no files in this folder")
    found = {name.name: getattr(scan, name.name) for name in fields(_Findings)}
    return ScannedFolder(root, listing, classes, **found)


@dataclass
class _Scan(_Findings):
    """Collects the files below `root`. `exclude` is a file that is no sample."""

    root: Path
    sidecars: tuple[str, ...]
    follow_links: bool
    exclude: Path | None

    def class_folders(self) -> list[str]:
        folders, files, links = [], [], 0
        for entry in self._entries(""):
            if self._is_folder(entry):
                folders.append(entry.name)
            elif self.exclude is None or Path(entry.path).resolve() != self.exclude:
                files.append(entry.name)
                links += entry.is_symlink() and Path(entry.path).is_dir()
        if not folders:
            return [""]
        tables = [name for name in files if name.lower().endswith((".tsv", ".csv"))]
        if files:
            raise UsageError(
                f"{self.root}: {counted(len(files), 'file')} next to the class folders (the first is {min(files)!r})."
                " Move them into a folder of their own, or pass --no-labels to read all files without classes"
                + (f"; {counted(links, 'link')} to folders, which --follow-links reads as classes" if links else "")
                + (". Is it the table of transcripts? --transcripts names it" if self.sidecars and tables else "")
            )
        for name in folders:
            if not _is_utf8(name):
                raise UsageError(f"class folder {printable(name)}: {_NOT_UTF8}")
        return sorted(folders)

    def files_below(self, top: str, label: int) -> Iterator[SourceFile]:
        """Yield the files of a class in order: folders sorted by path, files by name."""
        folders: dict[str, list[str]] = {}
        pending = [(top, frozenset[tuple[int, int]]())]
        while pending:
            folder, above = pending.pop()
            identity = _identity(self.root / folder)
            if identity in above:
                self.problems.append(Problem.of(folder, "a link leads back to a folder above it"))
                continue
            names, empty = [], True
            for entry in self._entries(folder):
                empty = False
                if self._is_folder(entry):
                    pending.append((_join(folder, entry.name), above | {identity}))
                else:
                    names.append(entry.name)
            folders[folder] = sorted(names)
            if empty and folder and _is_utf8(folder):
                self.empty_folders.append(folder)
            elif empty and folder:
                self.problems.append(Problem.of(folder, _NOT_UTF8))
        for folder in sorted(folders):
            yield from self._usable(folder, folders.pop(folder), label)

    def _usable(self, folder: str, names: list[str], label: int) -> Iterator[SourceFile]:
        root, sidecar_of = str(self.root), dict[str, int]()
        if self.sidecars:
            stems = {os.path.splitext(name)[0] for name in names if not name.endswith(self.sidecars)}
            for name in names:
                stem, suffix = os.path.splitext(name)
                if suffix in self.sidecars and stem in stems:
                    sidecar_of[stem] = sidecar_of.get(stem, 0) | SIDECARS[suffix]
            names = [n for n in names if not (n.endswith(self.sidecars) and os.path.splitext(n)[0] in stems)]
        for name in names:
            key = _join(folder, name)
            path = f"{root}/{key}"  # a string: a Path costs more than the system call
            if self.exclude is not None and name == self.exclude.name and Path(path).resolve() == self.exclude:
                continue
            sidecar = sidecar_of.get(os.path.splitext(name)[0], 0) if sidecar_of else 0
            reason, facts = self._why_unusable(path, key)
            if facts is not None:
                yield SourceFile(key, label, facts.st_size, facts.st_mtime_ns, sidecar)
                continue
            self.problems.append(Problem.of(key, reason))
            stem = os.path.splitext(key)[0]
            self.lost_sidecars += [stem + suffix for suffix, bit in SIDECARS.items() if sidecar & bit]

    def _why_unusable(self, path: str, key: str) -> tuple[str, os.stat_result | None]:
        if not _is_utf8(key):
            return _NOT_UTF8, None
        try:
            facts = os.lstat(path)
            if stat.S_ISLNK(facts.st_mode):
                inside = Path(path).resolve().is_relative_to(self.root.resolve())
                if not (self.follow_links or inside):
                    return (
                        f"a symbolic link out of the folder, to {Path(path).readlink()}; --follow-links allows it",
                        None,
                    )
                facts = Path(path).stat()
        except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
            return f"cannot be read: {getattr(error, 'strerror', None) or error}", None
        if stat.S_ISDIR(facts.st_mode):
            return "a symbolic link to a folder; --follow-links allows it", None
        if not stat.S_ISREG(facts.st_mode):
            return "not a regular file", None
        if facts.st_size == 0:
            return "the file is empty", None
        return "", facts

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name in IGNORED:
                        self.ignored += 1
                    else:
                        yield entry
        except OSError as error:
            self.problems.append(Problem.of(folder or str(self.root), f"the folder cannot be read: {error.strerror}"))

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir(follow_symlinks=self.follow_links)
        except OSError:  # links that form a circle
            return False


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
