"""Which files are the splits and configurations that the card of a Hub data set names, as `datasets` reads it?

The card is the YAML at the head of README.md; `.huggingface.yaml` replaces entries of it. Its `configs` name files for
each split of each configuration, by patterns, or by a folder in which the rules of `datasets` find the splits. These
names replace those that files and folders say (`splits`). A file may belong to several splits, or to none. All but
`read_card` is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.splits import ALL, choose
from brand.errors import UsageError, counted, missing_extra
from brand.printable import printable

CARD: Final = "README.md"
CARD_ALONE: Final = ".huggingface.yaml"
_HEAD: Final = re.compile(r"\s*---\r?\n(.*?)\r?\n---", re.DOTALL)
_CONFIGS: Final = re.compile(r"^[\"']?configs[\"']?\s*:", re.MULTILINE)
_INFO: Final = re.compile(r"^dataset_info\s*:", re.MULTILINE)
CLASSES: Final = "classes"
_DTYPES: Final = {r"(large_)?string": "str", r"u?int\d+": "int", r"float\d+": "float"}
_MAGIC: Final = re.compile(r"[*?[]")
_ELSEWHERE: Final = re.compile(r"^/|::|://|(^|/)\.\.(/|$)")
"""Marks of a file that is not below the folder."""
_NO_DATA: Final = frozenset(
    ["README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"]
)
_KNOWN: Final = re.compile(
    r"csv|tsv|json|jsonl|ndjson|parquet|arrow|txt|xml|tar|zip|h5|hdf5|lance"
    r"|(?i:png|jpe?g|bmp|gif|tiff?|webp|p[pgn]m|wav|mp[34]|flac|ogg|opus|m4a|aiff|mkv|avi|webm|pdf)"
)
"""Endings of files that `datasets` takes for data."""
_PLAIN: Final = frozenset(["config_name", "data_files", "data_dir", "default", "description", "version"])
"""Entries of a configuration that do not change how files are read."""
_WORDS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEP: Final = "[-._ 0-9]"
_FOLDERS: Final = (f"{{0}}/**|{{0}}{_SEP}*/**|*{_SEP}{{0}}/**|*{_SEP}{{0}}{_SEP}*/**").split("|")
_FILES: Final = (f"{{0}}{_SEP}*|*{_SEP}{{0}}{_SEP}*").split("|")
_SHARDED: Final = re.compile(r"(.+)-\d{5}-of-\d{5}.*\..*")


class CardFiles(NamedTuple):
    """The files of one split of one configuration."""

    names: list[str]
    """In the order in which `datasets` reads them."""
    told: Mapping[str, Any]
    """The further entries of the configuration, such as `sep`."""
    types: Mapping[str, str]
    """See `declared`."""


class _Part(NamedTuple):
    config: str
    patterns: Sequence[str]
    names: Sequence[str]
    told: Mapping[str, Any]


def read_card(root: SourcePath) -> tuple[str, str]:
    """Return README.md and `.huggingface.yaml` of a folder, empty if they are not there. Raises OSError."""
    texts = ["", ""]
    for number, name in enumerate((CARD, CARD_ALONE)):
        with suppress(FileNotFoundError, IsADirectoryError):
            texts[number] = (root / name).read_bytes().decode("utf-8", "replace")
    return texts[0], texts[1]


def has_configs(card: tuple[str, str]) -> bool:
    """Return whether a card has configurations."""
    head = _HEAD.match(card[0])
    return any(_CONFIGS.search(text) for text in (head[1] if head else "", card[1]))


def of_card(
    source: str,
    card: tuple[str, str],
    names: Sequence[str],
    endings: Sequence[str],
    split: str | None,
    takes: Iterable[str] = (),
) -> CardFiles | None:
    """Return the files of the split of a configuration to convert; None if the card has no configurations.

    Args:
        source: The source, for messages.
        card: The texts that `read_card` returns.
        names: The paths of all files below the folder of the card.
        endings: The endings of the files that can be converted.
        split: The split or configuration to convert, `CONFIGURATION/SPLIT` if there are several configurations. None
            if there is one; `ALL` for all files, without the card.
        takes: Entries of a configuration that the caller follows; others that change values are refused.

    Raises:
        UsageError: There are several splits or configurations, or not the one that was asked for; or `datasets` would
            read other rows.
        MissingExtraError: The package PyYAML is not installed.
    """
    if split == ALL or not has_configs(card) or not (configs := _configs(source, card)):
        return None
    parts: dict[str, _Part] = {}
    for config, told in configs.items():
        more = {entry: value for entry, value in told.items() if entry not in _PLAIN}
        for split_name, patterns in _patterns(source, told, names):
            found = [name for pattern in patterns for name in _matching(pattern, names) if _is_known(name)]
            if not found or any(name.lower().endswith(tuple(endings)) for name in found):
                parts[f"{config}/{split_name}" if len(configs) > 1 else split_name] = _Part(
                    config, patterns, found, more
                )
    if not parts:
        there = ", ".join(sorted(map(printable, configs)))
        raise _refused(source, f"no configuration of its {CARD} ({there}) names a file with {_shown(endings)}")
    label = choose(source, {label: len(part.names) for label, part in parts.items()}, split)
    _check(source, label, parts[label], endings, frozenset(takes))
    part = parts[label]
    return CardFiles(list(part.names), part.told, declared(card, part.config))


def _check(source: str, label: str, part: _Part, endings: Sequence[str], takes: frozenset[str]) -> None:
    """Raise `UsageError` if `datasets` would read other rows than those of the files that the patterns match."""
    about = f"{CARD} names for {printable(label)}"
    for pattern in part.patterns:
        shown = printable(pattern)
        if _ELSEWHERE.search(pattern):
            raise _refused(source, f"{about} {shown}, which is not below this folder")
        if any("**" in component and component != "**" for component in pattern.split("/")):
            raise _refused(source, f"{about} {shown}, and ** can only stand between slashes")
        if not _MAGIC.search(pattern) and pattern not in part.names:
            raise _refused(source, f"{about} {shown}, and there is no such file of data")
    other = next((name for name in part.names if not name.lower().endswith(tuple(endings))), None)
    if other is not None:
        raise _refused(source, f"{about} {printable(other)} next to files with {_shown(endings)}")
    twice = next((name for name in part.names if part.names.count(name) > 1), None)
    if twice is not None:
        raise _refused(source, f"{about} {printable(twice)} twice, and datasets reads it twice")
    if not part.names:
        raise _refused(source, f"{about} {', '.join(map(printable, part.patterns))}, and no file is such")
    entry = next((entry for entry in part.told if entry not in takes), None)
    if entry is not None:
        raise _refused(source, f"{CARD} says that {printable(label)} is read with {entry!r}, which is not followed")


def _shown(endings: Iterable[str]) -> str:
    return ", ".join(ending for ending in endings if ending.count(".") == 1)  # without those of compressed files


def _refused(source: str, what: str) -> UsageError:
    return UsageError(f"{source}: {what}. Name the files by a pattern, or take all with --split {ALL}, without {CARD}")


def _configs(source: str, card: tuple[str, str]) -> dict[str, Mapping[str, Any]]:
    """Return name -> entries of each configuration."""
    try:
        import yaml
    except ImportError as error:
        what = f"the {CARD} of {source} names configurations, and reading them"
        raise missing_extra(error, what, "'brand-data[hf]'") from error
    head, told = _HEAD.match(card[0]), dict[str, Any]()
    for text in (head[1] if head else "", card[1]):
        try:
            told |= yaml.safe_load(text) or {}
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise _refused(source, f"the head of its {CARD} is no YAML") from error
    configs = told.get("configs") or []
    if not isinstance(configs, list) or not all(isinstance(each, dict) and "config_name" in each for each in configs):
        raise _refused(source, f"`configs` in its {CARD} is no list of configurations with names")
    return {str(each["config_name"]): each for each in configs}


def _patterns(source: str, config: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield split and patterns of a configuration."""
    below, files = str(config.get("data_dir") or ""), config.get("data_files")
    if files is None:
        inside = f"{PurePosixPath(below)}/" if PurePosixPath(below).parts else ""
        some = [name.removeprefix(inside) for name in names if name.startswith(inside)]
        found = _by_rules(source, some)
    elif isinstance(files, list) and any(isinstance(each, dict) for each in files):
        if not all(isinstance(each, dict) and each.keys() == {"split", "path"} for each in files):
            raise _refused(source, f"`data_files` in its {CARD} is no list of split and path")
        found = {str(each["split"]): _texts(each["path"]) for each in files}
        if len(found) < len(files):
            raise _refused(source, f"`data_files` in its {CARD} has a split twice")
    elif isinstance(files, dict):
        raise _refused(source, f"`data_files` in its {CARD} is no list of split and path")
    else:
        found = {"train": _texts(files)}
    for part, patterns in found.items():
        yield (
            part,
            [pattern if _ELSEWHERE.search(pattern) else str(PurePosixPath(below, pattern)) for pattern in patterns],
        )


def _texts(value: Any) -> list[str]:
    return [str(each) for each in (value if isinstance(value, list) else [value])]


def _by_rules(source: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return split -> patterns of a folder for which a configuration names no files."""
    folder = [_SHARDED.fullmatch(name.removeprefix("data/")) for name in names if re.fullmatch(r"data/[^/]+", name)]
    if splits := sorted({found[1] for found in folder if found}):
        if not all(re.fullmatch(r"\w+(\.\w+)*", split) for split in splits):
            raise _refused(source, f"a name such as {printable(splits[0])} is no split")
        digits = "[0-9]" * 5
        return {split: [f"data/{split}-{digits}-of-{digits}*.*"] for split in splits}
    for forms in (_FOLDERS, _FILES):
        patterns = {
            split: [f"**/{form.format(word)}" for word in words for form in forms] for split, words in _WORDS.items()
        }
        found = {split: some for split, some in patterns.items() if any(any(_matching(p, names)) for p in some)}
        if found:
            return {
                split: [pattern for pattern in some if any(_matching(pattern, names))] for split, some in found.items()
            }
    return {"train": ["**"]}


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern, sorted; hidden ones only if it says so."""
    parts = pattern.split("/")
    found = [name for name in names if _matches(name.split("/"), parts)]
    return sorted(name for name in found if _is_meant(name.split("/"), parts))


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not name:
        return not pattern and not name
    if pattern[0] == "**":
        return len(pattern) == 1 or any(_matches(name[at:], pattern[1:]) for at in range(len(name)))
    return fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


def _is_meant(name: Sequence[str], pattern: Sequence[str]) -> bool:
    hidden = [sum(part.startswith(".") for part in parts) for parts in (name, pattern)]
    special = [sum(part.startswith("__") for part in parts[:-1]) for parts in (name, pattern)]
    return hidden[0] == hidden[1] and special[0] == special[1] and (name[-1] not in _NO_DATA or name[-1] == pattern[-1])


def _is_known(name: str) -> bool:
    return any(map(_KNOWN.fullmatch, name.rpartition("/")[2].split(".")[1:]))


def declared(card: tuple[str, str], config: str | None) -> dict[str, str]:
    """Return column -> codec of the columns whose types a card declares in `dataset_info`; `classes` for class names.

    `config` is the configuration; None if there is only one. Empty if the card cannot be read.
    """
    head = _HEAD.match(card[0])
    if head is None or not _INFO.search(head[1]):
        return {}
    try:
        import yaml

        found = yaml.safe_load(head[1])["dataset_info"]
        infos = found if isinstance(found, list) else [found]
        info = next(each for each in infos if len(infos) == 1 or each.get("config_name") == config)
        types = {each["name"]: each.get("dtype") for each in info["features"]}
    except Exception:  # noqa: BLE001 - it may hold anything, and is a hint only
        return {}
    codecs = {str(name): _codec_declared(dtype) for name, dtype in types.items()}
    return {name: codec for name, codec in codecs.items() if codec}


def _codec_declared(dtype: object) -> str:
    if isinstance(dtype, dict):
        return CLASSES if "class_label" in dtype else ""
    return next((codec for words, codec in _DTYPES.items() if re.fullmatch(words, str(dtype))), "")


def about_declared(declared: Mapping[str, str], fields: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield notes on types that a card declares and that are not those of the fields: (column, name, codec)."""
    other = [(column, declared[column]) for column, _, codec in fields if declared.get(column, codec) != codec]
    if some := [f"--field {printable(column)}={codec}" for column, codec in other if codec != CLASSES]:
        yield f"{CARD} declares other types of columns, which {', '.join(some)} would give them"
    if some := [printable(column) for column, codec in other if codec == CLASSES]:
        yield f"{CARD} names the classes of {', '.join(some)}: --label COLUMN --classes FILE gives a column such names"


def whole_folder(source: str, files: Sequence[str], names: Iterable[str]) -> str:
    """Return the folder that holds exactly these of all files of data. Raises `UsageError` if none does."""
    above = [PurePosixPath(name).parent.parts for name in files]
    common = 0
    while common < min(map(len, above)) and len({parts[common] for parts in above}) == 1:
        common += 1
    folder = "/".join(above[0][:common])
    inside = {name for name in names if not folder or name.startswith(f"{folder}/")}
    if more := sorted(
        name for name in inside - set(files) if _is_known(name) and name.rpartition("/")[2] not in _NO_DATA
    ):
        what = f"{counted(len(files), 'file')} of one split, and {printable(more[0])} is next to them"
        raise UsageError(f"{source}: its {CARD} names {what}. Name a folder, or take all with --split {ALL}")
    return folder
