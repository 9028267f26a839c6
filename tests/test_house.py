"""Rules of the repository: which modules an import loads, which files exist, and which object owns a field."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from pathlib import Path

import pytest

import brand
from tests.support import LIMIT_S

pytestmark = pytest.mark.usefixtures("real_start")
MOST_PARAMETERS = 8
"""Of a constructor; more belong into a value object."""
FOREIGN = {
    "argtypes",
    "restype",
    "writeable",
    "filename",
    "ignore_data_skip",
    "cell_contents",
    "__kwdefaults__",
    "check_hostname",
    "verify_flags",
    "state",
}
"""Fields of objects of Python and of other libraries, which are made to be assigned."""


def python(*code: str, check: bool = True) -> str:
    """Output of a fresh interpreter."""
    command = [sys.executable, "-W", "error", "-c", "\n".join(code)]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=LIMIT_S).stdout


def library_files(repository: Path) -> list[Path]:
    """Python files of the library that git tracks, or all of them where this is no checkout."""
    found = subprocess.run(
        ["git", "ls-files", "brand/*.py"], cwd=repository, capture_output=True, text=True, check=False
    ).stdout.split()
    return [repository / name for name in found] or sorted((repository / "brand").rglob("*.py"))


def test_importing_brand_loads_no_heavy_library() -> None:
    """Torch, gRPC, click, rich, Pillow and soundfile are loaded when they are used, not before."""
    loaded = python("import sys, brand", "print(*sorted(m for m in sys.modules if '.' not in m))").split()
    assert not {"torch", "grpc", "click", "rich", "PIL", "soundfile"} & set(loaded)


@pytest.mark.slow
def test_the_data_set_class_is_found_lazily() -> None:
    """`from brand import BrandDataset` is the class of `brand.torch`, and loads torch only then."""
    told = python(
        "import sys, brand",
        "before = 'torch' in sys.modules",
        "from brand import BrandDataset",
        "from brand.torch import BrandDataset as same",
        "print(before, BrandDataset is same, 'torch' in sys.modules, 'grpc' in sys.modules)",
    )
    assert told.split() == ["False", "True", "True", "False"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy lookup does not hide a mistyped name."""
    with pytest.raises(AttributeError, match="BrandDatset"):
        _ = brand.BrandDatset


def test_the_public_names_are_sorted_and_there() -> None:
    """`__all__` is sorted, and every name in it is an attribute."""
    assert list(brand.__all__) == sorted(brand.__all__)
    for name in brand.__all__:
        assert getattr(brand, name) is not None


def test_a_star_import_leaves_the_names_of_python_alone() -> None:
    """`from brand import *` does not replace `open`."""
    assert set(brand.__all__) & set(vars(builtins)) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("real_start")
def test_a_script_with_a_data_set_at_module_level_ends_without_a_word(photos_set: Path) -> None:
    """The interpreter takes apart a data set after the modules that closing a file needs."""
    code = f"import brand; ds = brand.BrandDataset({str(photos_set)!r}, fields=('key',)); print(ds[1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stderr == ""


def test_without_torch_the_message_says_how_to_install_it() -> None:
    """Where PyTorch is missing, `BrandLoader` is an ImportError that names the extra."""
    told = python(
        "import sys",
        "sys.modules['torch'] = None",
        "import brand",
        "try:",
        "    brand.BrandLoader",
        "except ImportError as error:",
        "    print(isinstance(error, brand.BrandError), error)",
    )
    assert told.startswith("True")
    assert "brand-data[train]" in told


def test_windows_is_refused_in_one_sentence() -> None:
    """In place of a module that is missing somewhere below."""
    told = python(
        "import sys", "sys.platform = 'win32'", "try:", "    import brand", "except ImportError as e:", "    print(e)"
    )
    assert told.startswith("Brand does not run on Windows")


@pytest.mark.parametrize("room", ["chunker", "cli", "formats"])
def test_the_links_at_the_top_lead_into_the_package(repository: Path, room: str) -> None:
    """The rooms seen at the root are relative links, not copies."""
    link = repository / room
    assert link.is_symlink()
    assert link.readlink() == Path("brand") / room
    assert (link / "__init__.py").is_file()


def assigned(tree: ast.AST) -> list[ast.Attribute]:
    """Fields that are assigned, of whatever object."""
    return [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]


def test_a_constructor_takes_values_in_place_of_many_parameters(repository: Path) -> None:
    """Public classes are left out: their users name each option."""
    many = set()
    for path in library_files(repository):
        for owner in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            made = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
            parameters = [len(each.args.args) - 1 + len(each.args.kwonlyargs) for each in made]
            if max(parameters, default=0) > MOST_PARAMETERS and owner.name not in brand.__all__:
                many.add(owner.name)
    assert many == set()


def test_an_object_changes_its_own_fields_only(repository: Path) -> None:
    """Whose state changes is told so by a method."""
    found = [
        f"{path.name}, line {target.lineno}: {ast.unparse(target)}"
        for path in library_files(repository)
        for target in assigned(ast.parse(path.read_text()))
        if ast.unparse(target.value) not in ("self", "cls") and target.attr not in FOREIGN
    ]
    assert found == []


@pytest.mark.slow
def test_the_library_neither_prints_nor_reads_the_environment(repository: Path) -> None:
    """No call of print; os.environ only where launchers say which rank this is, and users where their store is.

    And whether the compiled loops are wanted.
    """
    found = []
    for path in library_files(repository):
        if not path.exists():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            printed = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            read = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
            if printed or (read and path.name not in ("ranks.py", "cloud.py") and path.parent.name != "native"):
                found.append(f"{path.name}:{getattr(node, 'lineno', 0)}")
    assert found == []


def test_verbs_print_through_one_function(repository: Path) -> None:
    """`output.echo` escapes what it prints; only a field that `brand cat` prints as it is does without."""
    found = {
        path.name
        for path in library_files(repository)
        if path.parent.name == "cli" and re.search(r"\bclick\.s?echo\(", path.read_text())
    }
    assert found == {"output.py", "show.py"}


def room_and_name(path: Path) -> str:
    """How the table of tests names a module: rooms within a room are left out, so that a move within a room is free."""
    return "/".join((*path.parts[:-1][:1], path.stem))


def test_the_table_of_tests_has_every_module_and_files_that_are_there(repository: Path) -> None:
    """`tests/README.md` says which test files prove a module."""
    table = (repository / "tests" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w/]+)` \| (.+) \|$", table, re.MULTILINE))
    named = {path for tests in rows.values() for path in re.findall(r"`(.+?)`", tests)}
    package = repository / "brand"
    modules = {room_and_name(p.relative_to(package)) for p in package.rglob("*.py") if p.name != "__init__.py"}
    assert set(rows) == modules
    assert sorted(path for path in named if not (repository / "tests" / path).is_file()) == []


@pytest.mark.slow
def test_every_module_says_what_it_is_for(repository: Path) -> None:
    """Each module has a docstring."""
    silent = [
        p.name for p in library_files(repository) if p.exists() and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert silent == []
