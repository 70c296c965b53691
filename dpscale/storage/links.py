"""Symbolic links in a run directory are refused, because a command that follows one writes and removes files elsewhere.

The run directory itself may be a link, and so may the folders above it. Every function that opens, lists or removes
files of a run checks the path first (`check_real`), on workers too, and a command that locks the directory checks all
of it before anything is charged (`check_tree`). The directory of a run is the folder with its manifest. Runs are inside
others: below the outermost one nothing is a link.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dpscale.base.errors import JobError

MANIFEST, MARK = "manifest.json", b'"job_sha256"'  # file of a run directory, and a key in it


def check_real(path: Path) -> None:
    """Raise JobError if a local path, or a folder of it below the outermost run directory, is a symbolic link.

    Parameters
    ----------
    path : Path
        Absolute path, which need not exist.
    """
    link = ""
    for place in map(str, (path, *path.parents)):
        if link and _is_run(place):
            raise linked(link)
        if os.path.islink(place):
            link = place


def _is_run(folder: str) -> bool:
    """Return whether a folder is a run directory; other programs write files of the same name."""
    with suppress(OSError), open(os.path.join(folder, MANIFEST), "rb") as file:
        return MARK in file.read()
    return False


def check_tree(folder: Path) -> None:
    """Raise JobError if a local run directory contains a symbolic link at any depth."""
    pending = [str(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:  # removed meanwhile, or not readable
            for entry in entries:
                if entry.is_symlink():
                    raise linked(entry.path)
                if entry.is_dir():
                    pending.append(entry.path)


def linked(path: str | Path) -> JobError:
    """Return the error for a symbolic link in a run directory."""
    return JobError("run directory", f"{path} is a symbolic link", "real folders and files in a run directory, which"
                    " itself may be a link", "replace it by what it points to")  # fmt: skip
