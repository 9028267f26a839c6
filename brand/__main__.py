"""The command `brand`, and `python -m brand`, with a clear message if a required package or threads are missing.

Without such a package no command can be loaded, including `brand doctor`. This module needs none of them. It names the
package that is missing or cannot be imported, and the command that installs it. Without threads, NumPy's libraries end
the process while they are loaded.
"""

import sys

from brand.starting import why_no_thread


def main() -> None:
    """Run the command and exit with its exit code."""
    if why := why_no_thread():
        sys.exit(f"brand: {why}")
    try:
        from brand.cli.main import main as command

        command()
    except ImportError as error:
        said = _what_to_do()
        if not said:
            raise
        sys.exit(f"brand: {error}\n{said}")


def _what_to_do() -> str:
    """Return the faults of the packages that Brand itself needs; empty if there are none."""
    from brand.doctor.packages import check_packages

    found = [each for each in check_packages(lambda *_: None, extras=False) if each.state != "ok"]
    return "\n".join(f"{each.told}\n  {each.cure}" for each in found)


if __name__ == "__main__":
    main()
