"""The command `brand`, and `python -m brand`: what does it say where a package is missing that all of Brand needs?

Without such a package no verb can be loaded, `brand doctor` included. This module needs none of them. It names what is
missing or cannot be imported, and the command that mends it.
"""

import sys


def main() -> None:
    """Run the command and leave with its exit code."""
    try:
        from brand.cli.main import main as command

        command()
    except ImportError as error:
        said = _what_to_do()
        if not said:
            raise
        sys.exit(f"brand: {error}\n{said}")


def _what_to_do() -> str:
    """What is wrong with the packages that Brand itself needs; empty where nothing is."""
    from brand.doctor.packages import look

    found = [each for each in look(lambda *_: None, extras=False) if each.state != "ok"]
    return "\n".join(f"{each.told}\n  {each.cure}" for each in found)


if __name__ == "__main__":
    main()
