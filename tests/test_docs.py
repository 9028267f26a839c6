"""The documentation tells what happens: each page is a session that is run, and what it prints is what stands there.

A page's blocks run from top to bottom in a folder that holds `examples/`:

    ```console   what stands behind `$ ` is run; the lines below it are its output, without the progress; a command that
                 ends in ` &` is a server, which runs until the page ends: its output up to its address
    ```python    run, in one namespace a page; `<!-- not run -->` above it excepts a block
    ```text      with `<!-- output -->` above it: what the Python block before it prints, or the error it ends with

`<!-- setup` ... `-->` holds commands that are not shown; there, `$ fashion-mnist` makes train.brand and test.brand of
Fashion-MNIST. `make docs-test` runs the pages; `python -m tests.test_docs [PAGE...]` writes today's output into them.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import gc
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import brand as library
from brand import BrandDataset, errors
from brand.chunker import convert_images
from tests.support import LIMIT_S, brand, free_port, options

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "_build" not in path.parts)
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
TIMED = ("guides/monitor.md",)
"""Pages whose counters depend on timing."""
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[a-z ]+) -->\n)?```(?P<kind>console|python|text)\n(?P<body>.*?)^```$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_PROGRESS = re.compile(
    r"^(scan|check|spool|pack|wait|seal|verify|unpack|reindex|partition|fill|copy|import|self-test|append|search|compact"
    r"|redact|download): [\d,]+( of .*)?\n",
    re.MULTILINE,
)
_VARIES = re.compile(
    r"\d+(\.\d+)? (s|B|kB|MB|%)|\b[0-9a-f]{16,32}\b|0x[0-9A-Fa-f]+|(?<=\"seconds\": )[\d.]+|(?<=_bytes\": )\d+"
    r"|(?<=decode it: ).*|process \d+|@brand-\d+-|[\d,.]+(?=/s\b)|(?<=_s\": )[\d.]+|(?<=\"process\": )\d+"
    r"|(?<=\"waited\": )\d+|(?<=amplification x)[\d.]+"
    r"|(?<=\nclients )\d+|(?<=\"clients\": )\d+|\d+(?= in flight)|[\d.]+ GB of [\d.]+ GB of memory|(?<=B )█+(?=\n)"
)
"""Durations, rates, sizes, ids, addresses, processes, and what Pillow says: they differ between machines and versions
of libraries."""
_ADDRESS = "unix:@fashion"
"""What pages call the servers that they start; each run of a page has addresses of its own."""
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}\b|(?<=--master-port )\d{4,5}\b")
"""Ports of this machine; each run of a page has free ones instead."""
_FOLDER = "/data"
"""What pages call the folder that they run in."""
_SHELL = re.compile(r"[|<>;&*$\"'\\]")


@cache
def fashion_mnist() -> Path:
    """A folder with `train.brand` and `test.brand`, as its guide makes them: once in this process."""
    folder = Path(tempfile.mkdtemp(prefix="brand-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(ROOT / "examples" / "data" / "fashion-mnist-small.zip") as archive:
        archive.extractall(folder / "pictures")
    for part in ("train", "test"):
        convert_images(folder / "pictures" / part, folder / "sets" / f"{part}.brand", options(64))
    return folder / "sets"


class Session:
    """One page's folder and Python namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        self.printed = ""
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        self.address = f"{_ADDRESS}-{os.getpid()}"
        self.ports: dict[str, str] = {}
        self.servers: list[subprocess.Popen[str]] = []
        self.bin = folder.parent / "bin"
        self.bin.mkdir()
        for name, start in {"python": sys.executable, "brand": f"{sys.executable} -m brand"}.items():
            (self.bin / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
            (self.bin / name).chmod(0o755)

    def run(self, page: str) -> str:
        """The page with what its blocks print today; a block's text stays where only times and sizes differ."""
        self.ports = {port: str(free_port()) for port in sorted(set(_PORT.findall(page)))}
        try:
            fresh = _BLOCK.sub(self._block, page)
        finally:
            for server in self.servers:
                server.terminate()
                server.communicate(timeout=LIMIT_S)
        self._nothing_left(page)
        return fresh

    def _block(self, match: re.Match[str]) -> str:
        kind, mark, body = match["kind"], match["mark"], match["body"]
        if match["setup"]:
            self._console(match["setup"])
        elif kind == "text" and mark == "output":
            fresh, self.printed = self.printed, ""
            return _replace(match, fresh)
        elif kind == "console" and mark != "not run":
            self._nothing_left(body)
            return _replace(match, self._console(body))
        elif kind == "python" and mark != "not run":
            self._nothing_left(body)
            self.printed = self._python(body)
        return match[0]

    def _nothing_left(self, where: str) -> None:
        assert not self.printed, f"not shown on the page, before {where[:80]!r}: {self.printed!r}"

    def _console(self, body: str) -> str:
        fresh = ""
        for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            end = next(n for n, line in enumerate(lines) if not line.endswith("\\\n")) + 1
            told = self._command(self._real("".join(lines[:end])[2:].strip()))
            fresh += "".join(lines[:end]) + self._shown(told)
        return fresh

    def _command(self, command: str) -> str:
        if command == "fashion-mnist":
            shutil.copytree(fashion_mnist(), self.folder, dirs_exist_ok=True)
            return ""
        if command.startswith("brand ") and not _SHELL.search(command):
            told = brand(*command.split()[1:])
            return told.out + told.err
        background = command.endswith(" &")
        started = subprocess.Popen(
            ["bash", "-c", f"exec {command[:-2]}" if background else command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ
            | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            text=True,
        )
        if not background:
            return started.communicate(timeout=LIMIT_S)[0]
        self.servers.append(started)
        assert started.stdout is not None
        seen = ""
        for line in started.stdout:
            seen += line
            if line.startswith(self.address):
                break
        return seen

    def _python(self, code: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(self._real(code), "page", "exec"), self.names)
            except Exception as error:  # noqa: BLE001 - the page shows whichever error it is
                out.write(traceback.format_exception_only(error)[-1])
        return self._shown(out.getvalue())

    def _real(self, text: str) -> str:
        return _PORT.sub(lambda match: self.ports[match[0]], text.replace(_ADDRESS, self.address))

    def _shown(self, text: str) -> str:
        for port, real in self.ports.items():
            text = re.sub(rf"(?<=:){real}\b", port, text)
        return _tidy(text.replace(self.address, _ADDRESS).replace(str(self.folder), _FOLDER))


def _replace(match: re.Match[str], fresh: str) -> str:
    if _settled(match["body"]) == _settled(fresh):
        return match[0]
    start = match.start("body") - match.start()
    return f"{match[0][:start]}{fresh}```"


def _tidy(text: str) -> str:
    """Without progress, blanks at the end of lines and traces of how the command was started."""
    text = re.sub(r"\bpython\S* -m [\w.]+", "brand", _PROGRESS.sub("", text))
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def _settled(text: str) -> str:
    """What is the same on every machine."""
    return _VARIES.sub("#", re.sub(r" +", " ", text))


def fresh_page(name: str, folder: Path) -> str:
    """A page with what its blocks print today."""
    place = folder / "page"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(place)
        patch.setenv("COLUMNS", "100")
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))  # no profile of this machine's storage
        patch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
        try:
            return Session(place).run((DOCS / name).read_text(encoding="utf-8"))
        finally:
            _end_servers()


def _errors(page: str) -> Counter[str]:
    """Return the kinds of the errors that a page shows: those of Python, and of commands that end with a traceback."""
    return Counter(re.findall(r"^([\w.]+(?:Error|Exception))\b", page, re.MULTILINE))


def _end_servers() -> None:
    """End the data servers of all data sets of this process: the next page may use their memory."""
    for found in gc.get_objects():
        if isinstance(found, BrandDataset) and not found._source.port.resolver.options.attached:
            with contextlib.suppress(errors.BrandError, ProcessLookupError):
                if process := found.stats().get("process"):
                    os.kill(process, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.pages
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in TIMED])
def test_a_page_shows_what_happens(name: str) -> None:
    """Every block of the page prints what the page says it prints.

    In a folder whose path is always as long: tables cut a path that does not fit.
    """
    with tempfile.TemporaryDirectory() as folder:
        shown, fresh = (DOCS / name).read_text(encoding="utf-8"), fresh_page(name, Path(folder))
    assert fresh == shown, "\n".join(difflib.unified_diff(shown.splitlines(), fresh.splitlines(), lineterm="", n=0))


@pytest.mark.slow
@pytest.mark.pages
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells, from top to bottom, in a folder of a checkout."""
    monkeypatch.chdir(ROOT / "docs" / "tutorials")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "notebook"}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in cells:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []
                exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
        _end_servers()


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/llms.txt", *(f"docs/{name}" for name in DOCUMENTS)]
)
def test_links_lead_to_files_and_headings(name: str) -> None:
    """Relative links of the documents lead to files and folders that are there, and to headings of those files."""
    text = _without_code((ROOT / name).read_text(encoding="utf-8"))
    missing = []
    for target, anchor in re.findall(r"\]\((?!https?://|mailto:)([^)#\s]*)#?([^)\s]*)\)", text):
        path = (ROOT / name).parent / target if target else ROOT / name
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|^<!-- setup$.*?^-->$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def _anchors(page: Path) -> set[str]:
    """Names of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", _without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index() -> None:
    """The index, or a page that it lists, lists each page: so the navigation shows it."""
    listed = {name for page in DOCUMENTS for name in _listed(page)}
    assert set(DOCUMENTS) - listed == {"index.md"}


def _listed(page: str) -> list[str]:
    """The pages in the tables of contents of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    entries = "\n".join(re.findall(r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    names = [re.sub(r"^.*<(.*)>$", r"\1", entry) for entry in entries.splitlines() if entry]
    return [(Path(page).parent / f"{name}.md").as_posix() for name in names]


def test_the_code_names_pages_that_are_there() -> None:
    """Messages, docstrings and comments that name a page of the documentation name one that is there."""
    code = [*(ROOT / "brand").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    named = {name for path in code for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))}
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_page_for_language_models_is_short_and_leads_to_every_guide() -> None:
    """`llms.txt`: a title, a summary, at most 80 lines, and each tutorial and guide."""
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# Brand\n\n> ")
    assert len(text.splitlines()) <= 80
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", text))
    assert {page for page in DOCUMENTS if page.startswith(("tutorials/", "guides/"))} - linked == set()


def test_what_the_page_for_language_models_shows_is_python() -> None:
    """Its Python compiles, and each name of Brand in it is there."""
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    compile(code, "llms.txt", "exec")
    assert [name for name in re.findall(r"\bbrand\.(\w+)", code) if not hasattr(library, name)] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_says_what_is_and_not_what_is_to_come(name: str) -> None:
    """`not yet` in a page is true on the day when it is written, and nothing reminds us of it afterwards."""
    assert not re.search(r"\bnot\s+yet\b", (DOCS / name).read_text(encoding="utf-8"), re.IGNORECASE)


def test_every_error_is_explained() -> None:
    """A page says what each error means and what to do."""
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    names = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "train_fashion_mnist.py"])
def test_an_example_is_short_and_is_run_on_a_page(name: str) -> None:
    """An example has at most 100 lines, and a page shows what it prints."""
    assert len((ROOT / "examples" / name).read_text().splitlines()) <= 100
    shown = re.compile(rf"^\$ .*\bpython .*examples/{re.escape(name)} ", re.MULTILINE)
    assert any(shown.search((DOCS / page).read_text(encoding="utf-8")) for page in DOCUMENTS)


if __name__ == "__main__":
    for page in sys.argv[1:] or DOCUMENTS:
        with tempfile.TemporaryDirectory() as temporary:
            old, fresh = (DOCS / page).read_text(encoding="utf-8"), fresh_page(page, Path(temporary))
            if failed := _errors(fresh) - _errors(old):
                sys.exit(f"{page} is left as it is: its code fails with {', '.join(failed)}")
            (DOCS / page).write_text(fresh, encoding="utf-8")
