"""Which files are in an image or audio folder, and which index and label does each file get?

Order and labels are those of torchvision's `ImageFolder`: classes are the top-level folders, sorted; within a class
the folders by path, within a folder the files by name. By option, classes have given numbers, or those of timm: the
folders that hold files, in natural order. Files directly in the folder make an unlabelled (flat) set. A file that
cannot be used becomes a `Problem` with its reason; it is never dropped in silence. Hidden files (a leading dot), files
that file managers leave behind, and README.md at the top, the card of a Hub data set, are ignored. Memory holds the
names of one class folder at a time.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Final

import xxhash

from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import OnProgress, Problem, StageProgress
from brand.chunker.sources.card import CARD, CARD_ALONE, has_configs, of_card, read_card, whole_folder
from brand.chunker.sources.labels import check_forms, check_known, class_facts
from brand.chunker.sources.listing import SIDECARS, TEXTS_OF_FOLDER, Listing, ListingWriter, SourceFile
from brand.chunker.sources.objects import ObjectPath, SourcePath, is_zip
from brand.chunker.sources.splits import ALL, first_word, splits_among
from brand.chunker.sources.trees import FileTree, folders_in, keys_below, tree_of
from brand.errors import SourceError, UsageError, counted
from brand.formats.constants import MANIFEST_NAME, VERSIONS_NAME
from brand.formats.noticed import Noticed
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
    tables: list[str] = field(default_factory=list)
    """Tables of the texts of the audio files next to them."""
    ignored: int = 0
    noticed: tuple[Noticed, ...] = ()


@dataclass
class ScannedFolder(_Findings):
    """The result of a scan."""

    root: SourcePath
    listing: Listing
    classes: tuple[str, ...] | None


def check_folder(root: SourcePath) -> None:
    """Raise `UsageError` if a source is not a folder, or is a data set already; `SourceError` if it cannot be read."""
    if isinstance(root, ObjectPath):
        _check_objects(root)
    elif not root.is_dir():
        check_unconverted(root)
        raise UsageError(f"{root}: there is no such folder" if not root.exists() else f"{root} is a file, not a folder")
    check_unconverted(root)


def _check_objects(root: ObjectPath) -> None:
    with suppress(FileNotFoundError):
        next(tree_of(root).entries(""), None)
        return
    if root.is_file():
        in_zip = is_zip(root.root) and is_zip(root.name)
        raise UsageError(f"{root} is {'a zip in a zip: unzip the outer one' if in_zip else 'a file, not a folder'}")
    raise UsageError(f"{root}: there is no such folder, or nothing in it")


def check_unconverted(root: SourcePath) -> None:
    """Raise `UsageError` if a source is a data set already, or a version of a collection."""
    if isinstance(root, Path) and collection_of(root) is not None:
        raise UsageError(f"{root} is a version of a collection, which is converted already: BrandDataset reads it")
    tree, folders = tree_of(root), folders_in(root)
    if {VERSIONS_NAME, "parts"} <= set(folders) and not tree.is_file(MANIFEST_NAME):
        raise UsageError(f"{root} is a collection, which is converted already: BrandDataset reads it")
    inside = sorted(name for name in folders if tree.is_file(f"{name}/{MANIFEST_NAME}"))
    if inside and not tree.is_file(MANIFEST_NAME):
        raise UsageError(
            f"{root} holds {counted(len(inside), 'data set')} of Brand, converted already: BrandDataset reads"
            f" {root / inside[0]}"
        )
    if tree.is_file(MANIFEST_NAME):
        how = "BrandDataset reads it, and `brand unpack` restores the folder that it was made from"
        raise UsageError(f"{root} is a converted data set already: {how}")


def folder_state(root: Path) -> str:
    """Return a digest, 16 hexadecimal digits, of all files and folders below `root`: names, sizes and dates of files.

    Names that a conversion ignores do not count. Reads no file. Raises OSError.
    """
    tree, total = tree_of(root), 0
    for key, is_folder in _all_below(tree, ""):  # in any order: so a sum
        total += xxhash.xxh3_64_intdigest(repr((key, is_folder or tree.facts(key))).encode())
    return f"{total % (1 << 64):016x}"


def _all_below(tree: FileTree, folder: str) -> Iterator[tuple[str, bool]]:
    for name, is_folder in tree.entries(folder):
        if not _is_ignored(name):
            key = f"{folder}/{name}" if folder else name
            yield key, is_folder
            if is_folder:
                yield from _all_below(tree, key)


def split_folder(root: SourcePath, options: Options) -> tuple[SourcePath, Options]:
    """Return the folder to convert, and the options for it: `root`, or the folder of the split that `options` name.

    A zip whose files are all in one folder at its top is that folder. The card of a Hub data set says the folders of
    the splits, if it has configurations. Raises `UsageError` if there are several splits, and none of them, nor `all`,
    was asked for.
    """
    root = _only_folder(root)
    if (folder := _folder_of_card(root, options)) is not None:
        return root if not folder else root / folder, replace(options, split=ALL)
    return _split_by_names(root, options), options


def _folder_of_card(root: SourcePath, options: Options) -> str | None:
    tree = tree_of(root)
    if options.split == ALL or not any(map(tree.is_file, (CARD, CARD_ALONE))):
        return None
    try:
        card = read_card(root)
    except OSError as error:
        raise SourceError(str(root), f"its README.md cannot be read: {error.strerror}") from error
    names = list(keys_below(tree)) if has_configs(card) else []
    part = of_card(str(root), card, names, ("",), options.split)
    return None if part is None else whole_folder(str(root), part.names, names)


def _split_by_names(root: SourcePath, options: Options) -> SourcePath:
    folders = _folders_in(root)
    if options.split == ALL or not folders:
        return root
    if len(folders) == 1 and options.split not in folders and splits_among(_folders_in(root / folders[0])):
        root, folders = root / folders[0], _folders_in(root / folders[0])
    if options.split is not None:
        return root / options.split if options.split in folders else root
    if splits := splits_among(folders):
        raise UsageError(_splits_in(root, splits))
    return root


def _only_folder(root: SourcePath) -> SourcePath:
    if not isinstance(root, ObjectPath) or not is_zip(root.root) or root.path.parts:
        return root
    with suppress(FileNotFoundError):
        inside = [entry for entry in tree_of(root).entries("") if not _is_ignored(entry[0])]
        if len(inside) == 1 and inside[0][1]:
            return root / inside[0][0]
    return root


def _folders_in(root: SourcePath) -> list[str]:
    return [name for name in folders_in(root) if not _is_ignored(name)]


def _splits_in(root: SourcePath, splits: Sequence[str]) -> str:
    some = ", ".join(f"--split {name}" for name in splits)
    if len(splits) == 1:
        return (
            f"{root} holds the split {splits[0]}, which is no class: {some} converts it. If it is the name of a class:"
            f" --split {ALL}"
        )
    return (
        f"{root} holds the splits {', '.join(splits)}, which are no classes. Convert each into a data set of its own:"
        f" {some}. If these are the names of classes, or all belong together: --split {ALL}"
    )


def scan_folder(
    root: SourcePath,
    work: Path,
    options: Options,
    *,
    sidecars: Sequence[str] = (),
    exclude: SourcePath | None = None,
    images: bool = False,
    on_progress: OnProgress,
) -> ScannedFolder:
    """List a folder's files into `work`. `exclude` is a file that is not a sample (a table of transcripts).

    `sidecars` are suffixes: a file with one of them belongs to the sample whose name it has, up to the suffix.

    Raises `UsageError` if there are files next to class folders, `SourceError` if the folder holds no files.
    """
    split = None if options.split in (None, ALL, root.name) else options.split
    tree = tree_of(root, follow_links=options.follow_links)
    scan = _Scan(tree, tuple(sidecars), exclude, split)
    tops = scan.class_folders() if options.with_labels else [""]
    found_classes = [] if tops == [""] else tops
    if found_classes and options.leaf_classes:  # what this walk finds besides, the walk for the files finds again
        found_classes = _Scan(tree, tuple(sidecars), exclude, split).leaf_folders(tops)
    classes = None if tops == [""] else number_classes(found_classes, options)
    if classes is None and options.classes is not None:
        raise UsageError(f"{root}: there are no class folders, and names of classes were given: leave out --classes")
    label_of = {"": -1} if classes is None else {name: label for label, name in enumerate(classes)}
    others = _Others.of(options) if images and classes is not None else _Others("", ())
    writer, total, used = ListingWriter(work), 0, set[int]()
    for top in tops:
        files = scan.files_below(top, label_of, leaf=options.leaf_classes and classes is not None)
        while batch := list(islice(files, _FILES_A_STEP)):
            writer.add(batch)
            total += sum(file.size for file in batch)
            used.update(file.label for file in batch)
            others.see([file.key for file in batch])
            if len(batch) == _FILES_A_STEP:
                on_progress(StageProgress("scan", writer.count, None, total, None))
    listing = writer.close()
    scan.add_faults()
    if options.split is None:
        scan.refuse_splits()
    on_progress(StageProgress("scan", len(listing), len(listing), total, total))
    if split is not None and not len(listing):
        there = splits_among(tops) or splits_among(scan.second) or sorted(word for word in scan.words if word)
        raise UsageError(f"{root} has no split {split!r}; it has {', '.join(there) or 'none'}")
    if not len(listing) and not scan.problems:
        raise SourceError(str(root), "there are no files in this folder")
    found = {name.name: getattr(scan, name.name) for name in fields(_Findings)}
    if classes is not None:
        known = len(options.like.classes or ()) if options.like else 0
        given = options.classes is not None
        facts = class_facts(classes, used, given=given, known=known, natural=options.natural_order)
        found["noticed"] = (*facts, *others.noticed(options))
    return ScannedFolder(root, listing, classes, **found)


@dataclass
class _Others:
    """Files of an image folder with classes that another reader leaves out, or gives another label."""

    reader: str
    endings: tuple[str, ...]
    left_out: int = 0
    deep: int = 0
    examples: tuple[str, str] = ("", "")
    """The first file that the reader leaves out, and the first in a folder below its class folder."""

    @classmethod
    def of(cls, options: Options) -> _Others:
        """Return those of the reader whose labels the options give."""
        if options.leaf_classes or options.natural_order:
            return cls("timm", (".png", ".jpg", ".jpeg"))
        return cls("ImageFolder", (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"))

    def see(self, keys: Sequence[str]) -> None:
        """Count files."""
        if not self.endings:
            return
        left_out = [key for key in keys if not key.lower().endswith(self.endings)]
        deep = [key for key in keys if key.count("/") > 1]
        self.left_out += len(left_out)
        self.deep += len(deep)
        self.examples = self.examples[0] or "".join(left_out[:1]), self.examples[1] or "".join(deep[:1])

    def noticed(self, options: Options) -> Iterator[Noticed]:
        """Yield the facts."""
        if self.left_out:
            text = (
                f"{{count}} file[s] [has|have] an ending that {self.reader} leaves out: later indices are not its own"
            )
            yield Noticed("endings_left_out", self.left_out, self.examples[0], text)
        if self.deep and not options.leaf_classes:
            text = (
                "{count} file[s] [is|are] in a folder below [its|their] class folder: --leaf-classes makes the folder"
                " that holds a file its class"
            )
            yield Noticed("deep_folders", self.deep, self.examples[1], text)


def number_classes(found: Sequence[str], options: Options) -> tuple[str, ...]:
    """Return the names of all classes, by label: those that have numbers already, then those that were found, sorted.

    Raises `UsageError` if classes were given and others are found, or if two names look alike.
    """
    known = options.known_classes
    if options.classes is not None:
        check_known(found, options.classes)
    check_forms([*known, *found])
    new = sorted(set(found) - set(known), key=natural_key if options.natural_order else None)
    return (*known, *new)


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts names as timm does: numbers by value, letters without case; then by the name itself."""
    parts = re.split(r"(\d+)", name.lower())
    return [int(part) if part.isdigit() else part for part in parts], name


@dataclass
class _Scan(_Findings):
    """Collects the files of a tree. `exclude` is a file that is no sample."""

    tree: FileTree
    sidecars: tuple[str, ...]
    exclude: SourcePath | None
    split: str | None = None
    """The split to read: folders of this name in the class folders, or files whose names begin with it."""
    second: set[str] = field(default_factory=set)
    """Names of the folders in class folders."""
    words: Counter[str] = field(default_factory=Counter)
    """Word of a split with which a name begins -> files without a class; an empty text for other names."""

    def add_faults(self) -> None:
        """Add the files that the tree cannot read, except those that would be ignored."""
        for key, reason in self.tree.faults().items():
            if any(_is_ignored(part) for part in key.split("/") if part not in (".", "..")):
                self.ignored += 1
            else:
                self.problems.append(Problem.of(key, reason))

    def refuse_splits(self) -> None:
        """Raise `UsageError` if folders in the class folders, or the names of files without a class, are splits."""
        found = splits_among(self.second)
        if len(found) < 2:
            found = sorted(self.words) if "" not in self.words and min(self.words.values(), default=0) > 1 else []
        if len(found) > 1:
            raise UsageError(_splits_in(self.tree.root, found))

    def class_folders(self) -> list[str]:
        folders, files = [], []
        for name, is_folder in self._entries(""):
            if is_folder:
                folders.append(name)
            elif not self._is_excluded(name, name):
                files.append(name)
        if not folders:
            return [""]
        tables = [name for name in files if name.lower().endswith((".tsv", ".csv"))]
        if files:
            links = sum(map(self.tree.is_link_to_folder, files))
            raise UsageError(
                f"{self.tree.root}: {counted(len(files), 'file')} next to the class folders (the first is"
                f" {min(files)!r}). Move them into a folder of their own, or pass --no-labels to read all files without"
                " classes"
                + (f"; {counted(links, 'link')} to folders, which --follow-links reads as classes" if links else "")
                + (self._about_table(min(tables)) if self.sidecars and tables else "")
            )
        for name in folders:
            if not _is_utf8(name):
                raise UsageError(f"class folder {printable(name)}: {_NOT_UTF8}")
        return sorted(folders)

    def _is_excluded(self, key: str, name: str) -> bool:
        return self.exclude is not None and name == self.exclude.name and self.tree.is_same(key, self.exclude)

    def _about_table(self, table: str) -> str:
        """Return the advice for a table at the top of the folder. Audio files have transcripts."""
        if TEXTS_OF_FOLDER in self.sidecars:
            return ". Is it the table of transcripts? --transcripts names it"
        option = f"--table {shlex.quote(str(self.tree.root / table))} --key COLUMN"
        return f". If {table} has a row for each image, name the folder of these images, with {option}"

    def leaf_folders(self, tops: Sequence[str]) -> list[str]:
        """Return the names of all folders that hold files, each once."""
        names = set[str]()
        for top in tops:
            for folder, files in self._walk(top):
                if files and _is_utf8(folder):
                    names.add(folder.rpartition("/")[2])
        return sorted(names)

    def files_below(self, top: str, label_of: Mapping[str, int], *, leaf: bool) -> Iterator[SourceFile]:
        """Yield the files below a top-level folder in order: folders sorted by path, files by name.

        The label is that of the top-level folder; with `leaf`, that of the folder that holds the file.
        """
        folders = dict(self._walk(top))
        for folder in sorted(folders):
            label = label_of.get(folder.rpartition("/")[2], -1) if leaf else label_of[top]
            yield from self._usable(folder, folders.pop(folder), label)

    def _walk(self, top: str) -> Iterator[tuple[str, list[str]]]:
        """Yield each folder with the sorted names of its files."""
        pending = [(top, frozenset[object]())]
        while pending:
            folder, above = pending.pop()
            identity = self.tree.identity(folder)
            if identity in above:
                self.problems.append(Problem.of(folder, "a link leads back to a folder above it"))
                continue
            names, empty = [], True
            for name, is_folder in self._entries(folder):
                empty = False
                if is_folder:
                    if folder and "/" not in folder:
                        self.second.add(name)
                        if self.split not in (None, name):
                            continue
                    pending.append((_join(folder, name), above | {identity}))
                elif self.split is None or "/" in folder or (not folder and first_word(name) == self.split):
                    names.append(name)
            if not folder:
                self.words.update(map(first_word, names))
            yield folder, sorted(names)
            if empty and folder and _is_utf8(folder):
                self.empty_folders.append(folder)
            elif empty and folder:
                self.problems.append(Problem.of(folder, _NOT_UTF8))

    def _usable(self, folder: str, names: list[str], label: int) -> Iterator[SourceFile]:
        sidecar_of, text_of = dict[str, int](), dict[str, str]()
        if self.sidecars and any(name.endswith(self.sidecars) for name in names):
            if TEXTS_OF_FOLDER in self.sidecars:
                text_of = self._texts_of(folder, names)
                names = [name for name in names if not name.endswith(TEXTS_OF_FOLDER)]
            stems = {os.path.splitext(name)[0] for name in names if not name.endswith(self.sidecars)}
            for name in names:
                stem, suffix = os.path.splitext(name)
                if suffix in self.sidecars and stem in stems:
                    sidecar_of[stem] = sidecar_of.get(stem, 0) | SIDECARS[suffix]
            names = [n for n in names if not (n.endswith(self.sidecars) and os.path.splitext(n)[0] in stems)]
        for name in names:
            key = _join(folder, name)
            if self._is_excluded(key, name):
                continue
            sidecar = sidecar_of.get(os.path.splitext(name)[0], 0) if sidecar_of else 0
            facts = self.tree.facts(key) if _is_utf8(key) else _NOT_UTF8
            if not isinstance(facts, str):
                text = text_of.get(os.path.splitext(name)[0], "") if text_of else ""
                yield SourceFile(key, label, facts.size, facts.mark, sidecar, text)
                continue
            self.problems.append(Problem.of(key, facts))
            stem = os.path.splitext(key)[0]
            self.lost_sidecars += [stem + suffix for suffix, bit in SIDECARS.items() if sidecar & bit]

    def _texts_of(self, folder: str, names: list[str]) -> dict[str, str]:
        """Return the texts in the tables of a folder, by the names of audio files without their suffixes."""
        stems, found = {os.path.splitext(name)[0] for name in names}, dict[str, str]()
        for table in (name for name in names if name.endswith(TEXTS_OF_FOLDER)):
            key = _join(folder, table)
            try:
                lines = (self.tree.root / key).read_text(encoding="utf-8-sig").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                self.problems.append(Problem.of(key, f"not a table of transcripts in UTF-8: {error}"))
                continue
            self.tables.append(key)
            for number, line in enumerate(lines, 1):
                stem, _, text = line.strip().partition(" ")
                if stem in found or (stem and stem not in stems):
                    why = "is named a second time" if stem in found else "is not next to the table"
                    self.problems.append(Problem.of(f"{key}, line {number}", f"the audio file {stem!r} {why}"))
                elif stem:
                    found[stem] = text.strip()
        return found

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        try:
            for name, is_folder in self.tree.entries(folder):
                if _is_ignored(name):
                    self.ignored += 1
                elif folder or is_folder or name != CARD:
                    yield name, is_folder
        except OSError as error:
            self.problems.append(
                Problem.of(folder or str(self.tree.root), f"the folder cannot be read: {error.strerror}")
            )


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name in IGNORED


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
