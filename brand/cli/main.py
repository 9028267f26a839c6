"""The group `brand`. It turns an error into a message, which names the thing and the next step, and an exit code.

0 done    1 something was found wrong    2 wrong use    130 stopped with Ctrl-C
"""

from __future__ import annotations

import io
import sys

import click

import brand
from brand.cli.append import append
from brand.cli.cache import cache
from brand.cli.cat import cat
from brand.cli.compact import compact
from brand.cli.convert import convert
from brand.cli.copy import copy
from brand.cli.delete import delete
from brand.cli.doctor import doctor
from brand.cli.info import info
from brand.cli.launch import launch
from brand.cli.output import fail
from brand.cli.overlay import overlay
from brand.cli.partition import partition
from brand.cli.profile import profile
from brand.cli.redact import redact
from brand.cli.reindex import reindex
from brand.cli.seal import seal
from brand.cli.serve import serve
from brand.cli.simulate import simulate
from brand.cli.top import top
from brand.cli.unpack import unpack
from brand.cli.verify import verify
from brand.cli.versions import versions
from brand.errors import BrandError, UsageError
from brand.printable import printable


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(brand.__version__, "-V", "--version", prog_name="brand")
def cli() -> None:
    """Pack samples into chunks, and look after data sets that are packed.

    Exit codes: 0 done, 1 something was found wrong, 2 wrong use, 130 stopped with Ctrl-C.
    """


for _verb in (
    convert,
    seal,
    copy,
    info,
    verify,
    unpack,
    cat,
    reindex,
    append,
    versions,
    overlay,
    delete,
    compact,
    redact,
    partition,
    profile,
    simulate,
    serve,
    launch,
    top,
    cache,
    doctor,
):
    cli.add_command(_verb)


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
