"""File systems that lack something: a library between Python and the kernel refuses calls for files below a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refused(int file, const char *what)
{
    char link[64], path[4096];
    const char *folder = getenv(what);
    if (folder == NULL || file < 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    if (strncmp(path, folder, strlen(folder)))
        return 0;
    errno = atoi(getenv("TEST_REFUSED_ERRNO"));
    return 1;
}

int flock(int file, int operation)
{
    return refused(file, "TEST_NO_LOCKS_BELOW") ? -1 : (int)syscall(SYS_flock, file, operation);
}

void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    if (refused(file, "TEST_NO_MAPS_BELOW"))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

void *mmap64(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    return mmap(address, size, protection, flags, file, offset);
}
"""


def library(folder: Path) -> Path:
    """Compile the library. Skips the test without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, made = folder / "refuse.c", folder / "refuse.so"
    source.write_text(_SOURCE)
    command = [compiler, "-O1", "-shared", "-fPIC", "-fno-builtin", "-o", str(made), str(source)]
    subprocess.run(command, check=True)
    return made


def without_locks(library: Path, folder: Path, error: int) -> dict[str, str]:
    """Return variables for a process in which flock fails for files below a folder."""
    return _variables(library, error, TEST_NO_LOCKS_BELOW=folder)


def without_maps(library: Path, folder: Path, error: int) -> dict[str, str]:
    """Return variables for a process in which mmap fails for files below a folder."""
    return _variables(library, error, TEST_NO_MAPS_BELOW=folder)


def _variables(library: Path, error: int, **folders: Path) -> dict[str, str]:
    named = {name: os.fspath(folder.resolve()) for name, folder in folders.items()}
    return {**os.environ, "LD_PRELOAD": os.fspath(library), "TEST_REFUSED_ERRNO": str(error), **named}
