"""How is the documentation built? With `make docs`, without a network; warnings are errors."""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path

from pygments.lexers.special import TextLexer

import brand

project = "Brand"
author = "the Brand contributors"
copyright = "the Brand contributors, Apache-2.0"  # noqa: A001 - Sphinx wants this name
version = release = brand.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "py:obj"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80

# Links into other projects' documentation need a network, and the build must not. To have them:
# `sphinx-build -D extensions=...,sphinx.ext.intersphinx`, or add the extension to the list above.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "torch": ("https://pytorch.org/docs/stable", None),
    "PIL": ("https://pillow.readthedocs.io/en/stable", None),
}

html_theme = "furo"
html_title = f"Brand {release}"
html_static_path = ["_static"]
html_css_files = ["brand.css"]
html_extra_path = ["llms.txt"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False


def _literal_drawings(_app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Turn the indented text of a docstring, such as a drawing or an example, into a literal block."""
    for at in range(len(lines) - 1):
        paragraph = lines[at] and not lines[at].startswith((" ", ".", "-", ":"))
        below = lines[at + 2] if at + 2 < len(lines) else ""
        if paragraph and not lines[at + 1] and re.match(r" {4,}\S", below):
            lines[at] = lines[at].removesuffix(".").removesuffix(":") + "::"


def _readable_defaults(
    _app: object, _what: str, _name: str, _obj: object, _options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Replace `<factory>`, a dataclass's text for some defaults, which is no Python and spoils the whole signature."""
    return signature and signature.replace("<factory>", "..."), returned


def _download_of_the_repository(_app: object, page: str, source: list[str]) -> None:
    """Let a link to a Markdown file outside `docs/`, such as `bench/README.md`, download the file."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), match[1]))
        return match[0] if target.startswith("docs/") else f"](<path:{match[1]}>)"

    source[0] = re.sub(r"\]\(((?:\.\./)+[\w/.-]+\.md)(?:#[\w-]+)?\)", link, source[0])


def _markdown_too(app: object, exception: Exception | None) -> None:
    """Write each page as Markdown next to the HTML: `llms.txt` links to these pages."""
    if exception is None:
        docs = Path(__file__).parent
        for name in app.env.found_docs:  # type: ignore[attr-defined]
            shutil.copy(docs / f"{name}.md", Path(app.outdir) / f"{name}.md")  # type: ignore[attr-defined]


def setup(app: object) -> None:
    """Connect the functions of this file to Sphinx, which calls this function."""
    app.add_lexer("hex", TextLexer)  # type: ignore[attr-defined]
    app.connect("autodoc-process-signature", _readable_defaults)  # type: ignore[attr-defined]
    app.connect("source-read", _download_of_the_repository)  # type: ignore[attr-defined]
    app.connect("build-finished", _markdown_too)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", _literal_drawings, priority=900)  # type: ignore[attr-defined]
