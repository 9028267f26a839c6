"""`brand doctor [DST]`: does Brand work on this machine, and with this data set?"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from brand.cli.dataset import DATA_SET
from brand.cli.output import duration, echo, meter, new_table, print_json
from brand.doctor.examine import examine
from brand.doctor.packages import CheckResult
from brand.errors import counted
from brand.printable import printable
from brand.version import __version__

if TYPE_CHECKING:
    from rich.table import Table  # imported where it is used: it takes longer than all other verbs need to start

_STYLES: Final = {"ok": "green", "missing": "yellow", "problem": "bold red"}
_WIDTHS: Final = (len("problem"), len("shared memory"))
"""Widths of the first two columns, so that the tables of all parts line up."""


@click.command()
@click.argument("dst", type=DATA_SET, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
def doctor(dst: Path | str | None, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Check this machine, the packages and optionally a data set.

    The command checks the installed packages, the kernel and the limits of this process, and trains from a small data
    set in a temporary folder. With DST, it also checks that data set and its storage. If DST is a folder without a data
    set, it checks whether one can be written there: locks, mappings and links.

    Exit code 1 means that something is broken. A missing extra is no error.
    """
    if not as_json:
        import rich.console  # noqa: F401 - if rich is missing, the user hears it before the checks and not after them
    with meter(quiet=as_json) as show:
        found = examine(dst, lambda stage, done, total: show(stage, done, total, 0, None))
    problems = sum(finding.state == "problem" for finding in found)
    if as_json:
        print_json({"brand": __version__, "problems": problems, "findings": [_facts(finding) for finding in found]})
    else:
        _show(found)
        echo("")
        echo(_verdict(problems, sum(finding.state == "missing" for finding in found)))
    return 1 if problems else 0


def _facts(finding: CheckResult) -> dict[str, Any]:
    facts = {"part": finding.part, "name": finding.name, "state": finding.state, "told": finding.told}
    facts |= {"next": finding.cure} if finding.cure else {}
    return facts if finding.seconds is None else facts | {"seconds": finding.seconds}


def _verdict(problems: int, missing: int) -> str:
    left = f"{counted(missing, 'optional thing')} {'is' if missing == 1 else 'are'} missing" if missing else ""
    if problems:
        return f"{counted(problems, 'problem')} found" + (f"; {left}" if left else "")
    return "Brand works here" + (f"; {left}" if left else "")


def _show(found: list[CheckResult]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for part, findings in groupby(found, key=lambda finding: finding.part):
        console.print(_table(part, list(findings)))


def _table(part: str, findings: list[CheckResult]) -> Table:
    from rich.text import Text  # no markup: a message may look like it

    table = new_table(f"\n{part}")
    for width in _WIDTHS:
        table.add_column(min_width=width, no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        told = each.told if each.seconds is None else duration(each.seconds)
        step = f"\n-> {printable(each.cure)}" if each.cure else ""
        table.add_row(Text(each.state, _STYLES[each.state]), Text(each.name), Text(printable(told) + step))
    return table
