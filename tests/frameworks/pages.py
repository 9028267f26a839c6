"""Which program does a section of a page show? Those of libraries that the page's own session does not start."""

from __future__ import annotations

import re
from pathlib import Path

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def program(page: str, heading: str) -> tuple[str, str]:
    """Return the Python blocks of a section, and the output that it shows."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = {kind: re.findall(rf"^```{kind}\n(.*?)^```$", section, re.M | re.S) for kind in ("python", "text")}
    return "\n".join(blocks["python"]), "".join(blocks["text"])
