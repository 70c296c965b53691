"""Where the private report goes: a folder of its own, outside every run directory, for the eyes of its owner alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dpscale.base.errors import JobError, TransientError
from dpscale.runs.manifest import MANIFEST
from dpscale.storage.files import checked_path, is_local, place

FIELD, TAKES = "--out", "a new or empty folder outside every run directory"
MARKS = (MANIFEST, "job.toml")  # of a run directory


@contextmanager
def claimed(out: str | Path, run: Path) -> Iterator[Path]:
    """The folder, made and empty; JobError where none may be there. Where the report fails nothing of it stays."""
    folder = checked(out, run)
    made = _made(folder, out)
    try:
        yield folder
    except BaseException:
        for name in os.listdir(folder):  # it was empty: all of it is ours
            (folder / name).unlink()
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


def checked(out: str | Path, run: Path) -> Path:
    """Where `out` leads, over all links; JobError where that is in a run directory, or no empty folder."""
    asked = place(checked_path(out, FIELD), FIELD)
    if not is_local(asked):
        raise _refused(f"{out}, in a store", "name a folder of this machine")
    folder = Path(os.path.realpath(asked))
    for above in (folder, *folder.parents):
        if _is_run(above) or _same(above, run):
            where = "is" if above == folder else "lies in"
            raise _refused(f"{out}, which {where} the run directory {above}", "what is in a run may be published")
    if os.path.lexists(folder) and not folder.is_dir():
        raise _refused(f"{out}, which is no folder", "choose another name")
    _check_empty(folder, out)
    return folder


def _check_empty(folder: Path, out: str | Path) -> None:
    with _denied(out):
        names = sorted(os.listdir(folder)) if folder.exists() else []
    if any(_is_run(folder / name) for name in names):
        raise _refused(f"{out}, which holds a run directory", "choose another")
    if names:
        raise _refused(f"{out}, which is not empty", "choose another, or empty it")


def _is_run(folder: Path) -> bool:
    return all(os.path.lexists(folder / name) for name in MARKS)


def _same(folder: Path, run: Path) -> bool:
    """Whether both are one folder, by whatever name: it may be mounted at two places."""
    with suppress(OSError):
        return os.path.samefile(folder, run)
    return False


def _made(folder: Path, out: str | Path) -> bool:
    """Whether the folder was not there; now it is, and nobody else can look into it."""
    with _denied(out):
        there = folder.exists()
        if not there:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        folder.chmod(0o700)
    return not there


@contextmanager
def _denied(out: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise _refused(f"{out} ({reason})", "mend that or choose another") from None


def _refused(got: str, remedy: str) -> JobError:
    return JobError(FIELD, got, TAKES, remedy)


def write(folder: Path, contents: Mapping[str, str]) -> None:
    """The files, each whole, that none but the owner can read. TransientError where the disk does not take them."""
    for name, content in contents.items():
        try:
            _write(folder / f".{name}.partial", folder / name, content)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            raise TransientError(FIELD, f"cannot write in {folder} ({reason})", "", "mend that and run again") from None


def _write(partial: Path, path: Path, content: str) -> None:
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(partial, path)
