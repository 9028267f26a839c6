"""The group `brand`. It turns an error into a message, which names the thing and the next step, and an exit code.

0 done    1 something was found wrong    2 wrong use    130 stopped with Ctrl-C

A command is imported when it runs, because the import of all commands takes longer than most of them run.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import Final

import click

import brand
from brand.cli.output import fail
from brand.errors import BrandError, UsageError
from brand.printable import printable
from brand.starting import not_started

COMMANDS: Final = {
    "Prepare data": ("convert", "seal", "copy", "unpack"),
    "Inspect": ("info", "cat", "verify", "reindex", "doctor"),
    "Collections": ("append", "overlay", "versions", "delete", "redact", "compact"),
    "Train and serve": ("serve", "launch", "partition", "cache", "top"),
    "Measure": ("profile", "simulate"),
}
"""The groups are those of `brand --help`."""
_MODULES: Final = {
    "collection": COMMANDS["Collections"],
    "convert": ("seal",),
    "serve": ("launch",),
    "show": ("info", "cat"),
    "upkeep": ("copy", "unpack", "verify", "reindex", "partition"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}
"""Each command is a function in this module, or in the module of its name."""


class _Commands(click.Group):
    """A group that imports a command when it runs the command. `commands` holds only the names, for suggestions."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as click calls it
        if cmd_name not in self.commands:
            return None
        command: click.Command = getattr(import_module(f"brand.cli.{_MODULE_OF.get(cmd_name, cmd_name)}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list for each group, so that a reader finds the commands of a task together."""
        longest = max(map(len, self.commands))
        for title, names in COMMANDS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            limit = formatter.width - 6 - longest
            rows = [(name.ljust(longest), command.get_short_help_str(limit)) for name, command in found if command]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(
    cls=_Commands,
    commands={name: click.Command(name) for names in COMMANDS.values() for name in names},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(brand.__version__, "-V", "--version", prog_name="brand")
def cli() -> None:
    """Convert data sets into chunks, inspect them, and serve them to trainings.

    Exit codes: 0 done, 1 something was found wrong, 2 wrong use, 130 stopped with Ctrl-C.
    """


def main() -> None:
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
    except (OSError, RuntimeError) as error:
        if why := not_started(error):
            sys.exit(fail(why, "NoThreadError", 1, as_json=as_json))
        if not isinstance(error, OSError) or error.filename is None:
            raise
        from brand.formats.publish import storage_reason

        told = printable(f"{os.fsdecode(error.filename)}: {storage_reason(error)}")  # a path that the system refuses
        sys.exit(fail(told, "StorageError", 1, as_json=as_json))
