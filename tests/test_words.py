"""The vocabulary holds: one word for one idea in code, messages, help and pages.

A name of a class is used once. Docstrings say *if* and *when* for conditions, and name the actor first. Words that the
project once used for an idea of the field are refused, each with its replacement, in the texts that users read: README,
pages for users, help of the command line, and messages.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from brand.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "brand").rglob("*.py"))
MOST = {"where": 2.0, "what": 2.0}
"""Of these words, at most so many in 1,000 words of docstrings."""
LEAST_IF = 5.0
"""And at least so many times "if" or "when"."""

REPLACED = {
    r"anew": "again",
    r"at the most": "at most",
    r"clips?": "audio",
    r"deals? out|dealt out": "shard",
    r"draws?|drawn|drew": "fetch",
    r"exact reads?": "direct read, random access",
    r"fill rate": "read utilisation",
    r"hurried": "on demand",
    r"looks? after": "maintain",
    r"mates": "chunk distance",
    r"mends?|mended": "repair, fix",
    r"neighbours": "adjacent distance",
    r"node servers?": "data server",
    r"parts?(?= [\d.])|(old|older|other|\d+) parts?": "segment, task",
    r"pictures?": "image",
    r"preparers?": "decode worker",
    r"shares?(?= [\d.]+ of)|\d+ shares?|share file": "partition",
    r"so many": "that many",
    r"stretch(es)?": "run, range",
    r"verbs?": "command",
}
"""Words of an older vocabulary, as patterns of whole words, and the words of the field that replace them."""
NO_PROSE = ("![", "docs/images")
"""Lines that hold one of these are not prose."""
USER_PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    *(
        page
        for kind in ("tutorials", "guides", "reference", "explanation")
        for page in (ROOT / "docs" / kind).glob("*.md")
    ),
]
CLAUSE = re.compile(r"(?:^|[.:;] )(What|Whichever|Of|Where) [^.?;]*[.;]", re.MULTILINE)
"""A sentence whose subject is a clause."""


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of several words in the code, with a dot for each value in them: errors, lines of the log,
    output and help of commands. Docstrings and the attributes that a repr shows are left out.
    """
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    attributes = (key.value for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for key in node.keywords)
    left_out = inside | {id(node) for node in (*statements, *attributes)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "." for v in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in left_out and " " in str(node.value):
            yield str(node.value)


def printed(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of lines for people, with a dot for each value in them, and the nouns that are counted there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("echo", "counted"):
            for part in node.args:
                if isinstance(part, ast.JoinedStr):
                    yield "".join(str(v.value) if isinstance(v, ast.Constant) else "." for v in part.values)
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value if " " in part.value else f"7 {part.value}"


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the help of a command and of all below it."""
    # A command remembers its `--help` option, with the names of the context that first asks for it.
    with click.Context(command, parent, name, **command.context_settings) as context:
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                found = command.get_command(context, each)
                assert found is not None
                yield from helps(found, each, context)


def old_words(text: str) -> list[str]:
    """Return the words of the older vocabulary in a text, each with its replacement. Code in backticks is left out."""
    prose = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
    found = [(re.search(rf"\b(?:{old})\b", prose, re.IGNORECASE), new) for old, new in REPLACED.items()]
    return [f"{match[0]} -> {new}" for match, new in found if match] + [m[0] for m in CLAUSE.finditer(prose)]


def test_a_class_name_is_used_once() -> None:
    """So a name leads to one class."""
    homes = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_docstrings_name_conditions_and_actors() -> None:
    """Few clauses with "where" and "what", and "if" or "when" for conditions."""
    count, words = Counter[str](), 0
    for path in MODULES:
        for text in docstrings(ast.parse(path.read_text())):
            found = re.findall(r"[a-z']+", text.lower())
            words += len(found)
            count.update(found)
    assert {word: per for word in MOST if (per := 1000 * count[word] / words) > MOST[word]} == {}
    assert 1000 * count["if"] / words >= LEAST_IF


def test_texts_in_the_code_use_the_words_of_the_field() -> None:
    """Errors, lines of the log, output of commands."""
    found = {
        f"{path.relative_to(ROOT)}: {text}": wrong
        for path in MODULES
        for text in texts(ast.parse(path.read_text()))
        if (wrong := old_words(text))
    }
    assert found == {}


def test_printed_lines_use_the_words_of_the_field() -> None:
    """Results of commands, and what messages count."""
    found = {
        f"{path.relative_to(ROOT)}: {text}": wrong
        for path in MODULES
        for text in printed(ast.parse(path.read_text()))
        if (wrong := old_words(text))
    }
    assert found == {}


def test_help_uses_the_words_of_the_field() -> None:
    """Each command and option."""
    found = {name: wrong for name, text in helps(cli, "brand") if (wrong := old_words(text))}
    assert found == {}


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.stem)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    """Paragraph by paragraph, without code and titles of papers."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not any(mark in line for mark in NO_PROSE)]
    assert [wrong for part in "\n".join(lines).split("\n\n") for wrong in old_words(part)] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("The node server draws a picture.", ["draws -> fetch", "node server -> data server", "picture -> image"]),
        (
            "Part 0/2 holds 3 shares; older parts remain",
            ["Part -> segment, task", "3 shares -> partition"],
        ),
        ("Of numbers the value is stored.", ["Of numbers the value is stored."]),
        ("What leaves the folder gives its blocks back.", ["What leaves the folder gives its blocks back."]),
        ("`draw` is code.", []),
        ("What is a stripe?", []),
    ],
)
def test_an_old_word_is_found(text: str, wrong: list[str]) -> None:
    """The check can fail."""
    assert old_words(text) == wrong


def test_keys_of_statistics_and_metrics_have_the_words_of_the_field() -> None:
    """`tests/cli/test_serve_top.py` compares the keys with the page that lists them."""
    page = (ROOT / "docs" / "reference" / "statistics.md").read_text()
    names = re.findall(r"`([a-z_]+)`", page)
    words = {word for name in names for word in name.split("_")}
    assert {"fetched", "decoding"} <= words
    assert not words & {"draw", "draws", "drawn", "made", "prepared", "preparation", "preparers", "wants"}
