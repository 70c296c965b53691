"""How a run directory comes to be: whole or not at all, and of several processes that make it one does.

A new folder is made under another name and renamed. Where a folder is there and empty, as a mount point or one with
rights of its own, and in a store, the files are written into it and the manifest is the last: it makes a run of them.
Those before it follow from the job, so what a killed process left of them is written again. Whatever else is there is
not ours: it is not written over, and the rest of an older run is not taken for this one's.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dpscale.base.errors import JobError
from dpscale.runs.fingerprints import disk_errors
from dpscale.runs.manifest import MANIFEST, read_manifest
from dpscale.storage.files import (
    PROBE,
    check_conditional,
    create,
    is_local,
    is_partial,
    listed,
    place,
    present,
    read_bytes,
    write_whole,
)

Files = dict[str, bytes]
EMPTY_DISK = "lost+found"


def led_to(path: str | Path) -> Path:
    """Where a path leads, also one over links that lead nowhere yet."""
    where = place(path)
    return Path(os.path.realpath(where)) if is_local(where) else where


@contextmanager
def making(where: Path) -> Iterator[None]:
    """What the operating system says against a run directory, as one sentence; a full disk can be tried again."""
    try:
        with disk_errors(where):
            yield
    except (OSError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not possible"
        raise JobError("run directory", f"cannot make {where} ({reason})", "a place to write",
                       "choose another --run-dir") from None  # fmt: skip


def make(where: Path, files: Files) -> bool:
    """Make it with its first files, the manifest the last of them; False where another process did."""
    if is_local(where) and not where.exists() and _rename_into_place(where, files):
        return True
    if not _ours(where, files):
        if present(where / MANIFEST):  # made since it was asked for
            return False
        raise JobError("run directory", f"{where} is there and is no run directory", "a new or empty directory",
                       "choose another --run-dir")  # fmt: skip
    return _fill(where, files)


def _rename_into_place(where: Path, files: Files) -> bool:
    """Whether this process made the folder; not where one has come to be meanwhile."""
    draft = where.with_name(f".{secrets.token_hex(16)}.new")
    try:
        draft.mkdir(parents=True)
        for name, content in files.items():
            write_whole(draft / name, content)
        os.rename(draft, where)
    except OSError:
        if where.exists():
            return False
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _fill(where: Path, files: Files) -> bool:
    *before, (name, manifest) = files.items()
    if not is_local(where):
        check_conditional(where)
    for other, content in before:
        write_whole(where / other, content)
    return create(where / name, manifest)


def _ours(where: Path, files: Files) -> bool:
    """Whether nothing is there but what a maker of this very run leaves when it is killed."""
    if is_local(where) and not where.is_dir():
        return False
    return all(_left(where / name, files) for name in listed(where))


def _left(path: Path, files: Files) -> bool:
    if path.name in files and path.name != MANIFEST:
        return _content(path) == files[path.name]  # else it may be the user's own job.toml
    return path.name == EMPTY_DISK or path.name.startswith(PROBE) or is_partial(path)


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return b""


def latest(base: Path, digest: str) -> tuple[Path, int]:
    """The latest run of this job and its number; `base` and 1 where there is none."""
    mine = [number for number in _numbers(base) if _holds(numbered(base, number), digest)]
    number = max(mine, default=1)
    return numbered(base, number), number


def unmeasured(run: Path) -> str:
    """What is left of a run that is only to be measured."""
    return "" if read_manifest(run)["stages"].get("measure", {}).get("state") == "done" else "measure"


def following(base: Path, digest: str, left: Callable[[Path], str] = unmeasured) -> tuple[Path, int]:
    """Where a new release goes, and its number; JobError while the latest one is not done.

    `left`: of a run directory the first stage that is left to do, "" for none.
    """
    last, number = latest(base, digest)
    if not _holds(last, digest):
        return base, 1
    if not read_manifest(last).get("ended") and (stage := left(last)):
        what = "is not measured" if stage in ("plan", "measure") else f"its stage {stage} is not done"
        raise JobError("--fresh", f"{last} was begun and {what}", "a job whose latest run is done",
                       f"go on by --run-dir {last} without --fresh, or end it: `dpscale end {last}`")  # fmt: skip
    number = max(_numbers(base)) + 1
    return numbered(base, number), number


def numbered(base: Path, number: int) -> Path:
    """The directory of the number-th run."""
    return base if number == 1 else base.with_name(f"{base.name}-{number}")


def _numbers(base: Path) -> set[int]:
    """The numbers of what is there by such a name, runs or not."""
    name = re.compile(re.escape(base.name) + r"(?:-([2-9]|[1-9][0-9]{1,8}))?")
    found: Mapping[str, re.Match[str] | None] = {one: name.fullmatch(one) for one in listed(base.parent)}
    return {int(match[1] or 1) for match in found.values() if match}


def _holds(where: Path, digest: str) -> bool:
    return present(where / MANIFEST) and read_manifest(where)["job_sha256"] == digest
