"""Which splits and configurations do the names of files say? Pure.

The rules are those of the Hugging Face Hub: a split is a name before `-00000-of-00004`, a folder, or a word such as
`train`, `dev` or `test` in the name of a file; a configuration is a folder. They are stricter than the library
`datasets`, which takes only known words for splits and mixes other folders: here every folder is a part of its own,
unless its name is a number, a letter, or a word such as `shard` with a number.

The *label* of a file is what distinguishes its part: `en/train` for `en/train-00000-of-00002.parquet`. Files are
converted together if their labels are equal. `ALL` takes all files together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from brand.errors import UsageError, counted
from brand.printable import printable

ALL: Final = "all"
"""The name in place of that of a split: all files are taken together."""
REST: Final = "rest"
"""Label of the files whose names say nothing, next to files whose names do."""
_SHOWN: Final = 10

_QUALIFIERS: Final = frozenset(
    ["mini", "full", "small", "medium", "large", "tiny", "clean", "other", "std", "stdev", "dev", "val", "sft", "set"]
)
_WORD: Final = re.compile(
    r"(mini)?(train|training|trainval|test|testing|validation|valid|val|dev|eval|evaluation|holdout|heldout)"
    rf"({'|'.join(sorted(_QUALIFIERS))}|data|[a-d])?"
)
_NEUTRAL: Final = re.compile(
    r"data|default|dataset|parquet|parts?|partial|shards?|chunks?|block|files?|dir|folder|batch|bucket|group|node|rank"
    r"|worker|task|job|section|snapshot|[a-uw-z]?"
)
"""Words before a counter, and letters; but `v2` is a version."""
_SHARDED: Final = re.compile(r"[-._]?\d{5,}-of-\d{5,}.*")
_YEAR: Final = re.compile(r"(19|20)\d\d")
_HEX: Final = re.compile(r"[0-9a-f]{1,64}")
_BETWEEN: Final = re.compile(r"[^A-Za-z0-9]+")
_PARTITION: Final = re.compile(r"[^=/]+=[^/]*")


def is_split(name: str) -> bool:
    """Return whether a folder has the name of a split: `train`, `val2017`, `test-clean`; not `train_station`."""
    first, *others = [token for token in _BETWEEN.split(name.lower()) if token] or [""]
    return is_word(first) and all(_is_neutral(token) or token in _QUALIFIERS for token in others)


def splits_among(folders: Iterable[str]) -> list[str]:
    """Return the folders that are splits, if all or at least two are; else an empty list.

    Folders whose names differ in the word of a split alone, as `box_train` and `box_test`, are splits, too.
    """
    names, alike = sorted(folders), dict[tuple[str, ...], list[str]]()
    for name in names:
        tokens = [token for token in _BETWEEN.split(name.lower()) if token]
        rest = tuple(token for token in tokens if not is_word(token))
        if len(rest) < len(tokens):
            alike.setdefault(rest, []).append(name)
    pairs = {name for group in alike.values() if len(group) > 1 for name in group}
    found = [name for name in names if name in pairs or is_split(name)]
    return found if len(found) > 1 or found == names else []


def is_word(token: str) -> bool:
    """Return whether a word is that of a split, in lower case, with or without a counter."""
    return _WORD.fullmatch(token.rstrip("0123456789")) is not None


def first_word(name: str) -> str:
    """Return the word of a split with which the name of a file begins; an empty text if it begins otherwise."""
    token = _BETWEEN.split(name.lower(), maxsplit=1)[0].rstrip("0123456789")
    return token if _WORD.fullmatch(token) else ""


def is_partition(name: str) -> bool:
    """Return whether the name of a folder is `column=value`."""
    return _PARTITION.fullmatch(name) is not None


def labels_of(names: Sequence[str], endings: Sequence[str]) -> list[str]:
    """Return the label of each file. `names` are paths below the source, which end with one of `endings`."""
    folders = [name.split("/")[:-1] for name in names]
    flat = _fan_outs(folders)
    stems = [_without(name.rpartition("/")[2], endings) for name in names]
    told = [_label_of_stem(stem) for stem in stems]
    some = {tuple(folder) for folder, label in zip(folders, told, strict=True) if label}
    labels = []
    for folder, label in zip(folders, told, strict=True):
        parts = [
            part
            for level, part in enumerate(folder)
            if (*folder[:level],) not in flat and _kept(part) and not is_partition(part)
        ]
        last = label or (REST if tuple(folder) in some else "")
        if last and (not parts or parts[-1] != last):
            parts.append(last)
        labels.append("/".join(parts))
    return labels


def chosen(source: str, labels: Sequence[str], split: str | None) -> list[bool]:
    """Return which files are taken. `source` names the source in messages.

    Raises `UsageError` if the files are of several splits or configurations, or not of the one that was asked for.
    """
    if split == ALL:
        return [True] * len(labels)
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    label = choose(source, counts, split)
    return [each == label for each in labels]


def choose(source: str, counts: Mapping[str, int], split: str | None, what: str = "file") -> str:
    """Return the split to convert; `counts` are the files of each. Raises `UsageError` as `chosen` does."""
    if split is None:
        if len(counts) == 1:
            return next(iter(counts))
        named = {label or REST: count for label, count in counts.items()}
        raise UsageError(
            f"{source} holds more than one split or configuration: {_listed(named, what)}. Convert each of them into a"
            f" data set of its own: {_options(named)}. --split {ALL} takes all files together"
        )
    found = [label for label in counts if (label or REST) == split]
    found = found or [label for label in counts if split in label.split("/")]
    if len(found) == 1:
        return found[0]
    named = {label or REST: counts[label] for label in found or counts}
    if found:
        raise UsageError(f"{source} has several parts with the name {split!r}: {_listed(named, what)}; give one of them"
                         f" whole: {_options(named)}")  # fmt: skip
    there = _listed(named, what) if any(counts) else "the names of its files name no split"
    raise UsageError(f"{source} has no split {split!r}: {there}. Leave --split out, or give one that is there")


def _listed(counts: Mapping[str, int], what: str) -> str:
    some = sorted(counts)[:_SHOWN]
    more = f" and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    return ", ".join(f"{printable(label)} ({counted(counts[label], what)})" for label in some) + more


def _options(labels: Iterable[str]) -> str:
    some = sorted(labels)[:_SHOWN]
    return ", ".join(f"--split {_quoted(printable(label))}" for label in some)


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_./@%+=:,-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def _fan_outs(folders: Iterable[Sequence[str]]) -> set[tuple[str, ...]]:
    """Return the folders whose subfolders are named by hexadecimal numbers: `00`, `a7`, `ff`. These say nothing."""
    below: dict[tuple[str, ...], set[str]] = {}
    for folder in set(map(tuple, folders)):
        for level, part in enumerate(folder):
            below.setdefault(folder[:level], set()).add(part)
    return {
        above
        for above, names in below.items()
        if len(set(map(len, names))) == 1
        and all(_HEX.fullmatch(name) for name in names)
        and any(character.isdigit() for name in names for character in name)
    }


@lru_cache(maxsize=4096)
def _kept(folder: str) -> bool:
    """Return whether the name of a folder distinguishes its files from others."""
    tokens = [token for token in _BETWEEN.split(folder) if token]
    return not tokens or not all(_is_neutral(token) for token in tokens)


def _is_neutral(token: str) -> bool:
    """Return whether a token of a name is a counter, or the word before a counter."""
    lower = token.lower()
    return _NEUTRAL.fullmatch(lower.rstrip("0123456789")) is not None


def _without(name: str, endings: Sequence[str]) -> str:
    lower = name.lower()
    return next((name[: -len(end)] for end in sorted(endings, key=len, reverse=True) if lower.endswith(end)), name)


def _label_of_stem(stem: str) -> str:
    """Return the split that a file's name says; an empty text if it says none."""
    prefix = _SHARDED.sub("", stem)
    if prefix != stem:
        return prefix if _kept(prefix) and prefix else ""
    tokens = [token for token in _BETWEEN.split(stem) if token]
    words = [_counted_off(token) for token in tokens]
    if not any(is_word(word.lower()) for word in words if word):
        return ""
    return "_".join(word for word in words if word)


def _counted_off(token: str) -> str:
    """Return a token without the counter at its end; an empty text if it is a counter, or the word before one."""
    rest = token.rstrip("0123456789")
    if _is_neutral(token) or (_HEX.fullmatch(token) and len(token) > 5 and rest != token):  # a digest
        return ""
    return token if _YEAR.fullmatch(token[len(rest) :]) else rest
