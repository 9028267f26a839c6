"""The group `brand`. It turns an error into a message, which names the thing and the next step, and an exit code.

0 done    1 something was found wrong    2 wrong use    130 stopped with Ctrl-C

The command imports a verb when it runs it. To import all verbs takes longer than most of them run.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import Final

import click

import brand
from brand.cli.output import fail
from brand.errors import BrandError, UsageError
from brand.printable import printable

VERBS: Final = (
    "append",
    "cache",
    "cat",
    "compact",
    "convert",
    "copy",
    "delete",
    "doctor",
    "info",
    "launch",
    "overlay",
    "partition",
    "profile",
    "redact",
    "reindex",
    "seal",
    "serve",
    "simulate",
    "top",
    "unpack",
    "verify",
    "versions",
)
"""Each is a function in the module of its name."""


class _Verbs(click.Group):
    """Finds a verb in its module. `commands` has only the names: click lists them, and says which one was meant."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as click calls it
        if cmd_name not in self.commands:
            return None
        verb: click.Command = getattr(import_module(f"brand.cli.{cmd_name}"), cmd_name)
        return verb


@click.group(
    cls=_Verbs,
    commands={verb: click.Command(verb) for verb in VERBS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(brand.__version__, "-V", "--version", prog_name="brand")
def cli() -> None:
    """Pack samples into chunks, and look after data sets that are packed.

    Exit codes: 0 done, 1 something was found wrong, 2 wrong use, 130 stopped with Ctrl-C.
    """


def main() -> None:
    """Run the command and leave with its exit code."""
    as_json = "--json" in sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):  # paths may hold bytes that are not UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(prog_name="brand", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        stopped = (
            "Stopped. A conversion, copy or partition keeps what is finished: run the same command again, it goes on."
        )
        sys.exit(fail(stopped, "Interrupted", 130, as_json=as_json))
    except click.ClickException as error:
        if as_json:
            sys.exit(fail(error.format_message(), "UsageError", error.exit_code, as_json=True))
        vars(error)["message"] = printable(error.message)  # the message quotes what the user typed
        error.show()
        sys.exit(error.exit_code)
    except BrandError as error:
        code, notes = 2 if isinstance(error, UsageError) else 1, getattr(error, "__notes__", ())
        sys.exit(fail(str(error), type(error).__name__, code, as_json=as_json, notes=notes))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
