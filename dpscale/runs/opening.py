"""Opening of run directories: the directory of a job, created atomically or found, and parts of a run.

Nothing else asks which form a job has: the content of its run answers.

If several processes create the same directory, one succeeds. A new folder is created under another name and renamed. In
an existing empty folder, for example a mount point or one with special permissions, and in an object store, the files
are written one by one and the manifest last; the manifest makes the folder a run directory. The files before it follow
from the job, so those of a killed process are written again. Any other file belongs to the user: it is not overwritten,
and the remains of an older run are not treated as part of this run.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dpscale.base.errors import DpscaleError, JobError
from dpscale.job import Job, job_content
from dpscale.job.data import is_left, is_of_folder, place_entries
from dpscale.runs.manifest import (
    JOB_FILE,
    MANIFEST,
    check_version,
    disk_errors,
    read_manifest,
    read_stored,
    resolve_path,
)
from dpscale.runs.preflight import check_first_release
from dpscale.runs.run import Content, Part, Run
from dpscale.runs.stage import CONTENTS, load_kind
from dpscale.storage.files import (
    PROBE,
    WINDOWS,
    check_conditional,
    create,
    is_local,
    is_partial,
    is_path,
    listed,
    place,
    present,
    read_bytes,
    store_errors,
    write_whole,
)
from dpscale.storage.objects import real, slashed

Files = dict[str, bytes]
RESERVED = re.compile("con|prn|aux|nul|(com|lpt)[1-9]", re.IGNORECASE)
EMPTY_DISK = "lost+found"


def begin_run(
    job: Any,
    run_dir: str | Path | None = None,
    fresh: bool = False,
    files_accessible: bool = True,
    empty: bool = False,
) -> Run:
    """Create the run directory of a job, or reopen it.

    Parameters
    ----------
    job : Job
    run_dir : str or Path, optional
        By default it is runs/ plus the first digits of the job's digest, and the latest run of the job is reopened.
    fresh : bool
        Create another directory next to the existing one.
    files_accessible : bool
        Whether data and ledger can be read here; for a submitted job the driver checks them.
    empty : bool
        Whether data without a counted row are released.

    Raises
    ------
    JobError
        If the directory contains another job or cannot be created, or if `fresh` and the latest run is not finished.
    """
    content = content_of(job.kind)
    new = content.prepare(job)
    base = resolve_path(run_dir if run_dir is not None else default_base(new.digests))
    is_of_job = partial(contains_job, digests=new.digests, folder=None if run_dir is not None else job.folder)
    with store_errors(base), creation_errors(base):
        # the directory, and its number among the runs of the job
        where, number = _choose(base, is_of_job, fresh, named=run_dir is not None)
        missing = not present(where / MANIFEST)
        if missing:
            check_folder_names("tables", job.tables)
            check_folder_names("link.name", [link.called for link in job.foreign_keys])
        # all checks come before the directory exists, so that a refusal leaves nothing
        if missing and files_accessible:
            check_outside_data(where, job)
            check_first_release(job, new.digest, fresh)
            content.preflight(job, new.inputs)
        # an empty folder of the user is filled, not created
        existed = is_local(where) and where.is_dir()
        created = missing and create_directory(where, new.first_files(number, where, fresh))

    run = Run(where, content, (job, *new.inputs) if created else ())
    if run.manifest["job_sha256"] not in new.digests:
        raise JobError("run directory", f"{where} contains another job", "the directory of this job, or a new one",
                       "choose another --run-dir")  # fmt: skip
    run.created = ("files" if existed else "folder") if created else ""
    # another process, or an earlier call, has created it
    if not created:
        _take_places(run, job)
        run.content.reopen(job)
    if empty and not run.manifest.get("empty"):
        run.update(empty=True)
    return run


def default_base(digests: Sequence[str]) -> Path:
    """Return the directory of the first run of a job: that of an earlier version if it exists."""
    bases = [Path("runs") / digest[:12] for digest in digests]
    return next((base for base in bases if contains_job(resolve_path(base), digests)), bases[0])


def _choose(base: Path, mine: Callable[[Path], bool], fresh: bool, named: bool) -> tuple[Path, int]:
    """Return the directory of a run of a job, existing or new, and its number among the runs of the job.

    `mine` returns whether a directory contains a run of the job; `named` says that the user gave the directory's name.
    """
    if named and present(base / MANIFEST) and not mine(base):
        return base, 1  # it contains another job: `begin_run` refuses it
    if fresh:
        return next_directory(base, mine)
    return (base, 1) if named else latest_directory(base, mine)


def _take_places(run: Run, job: Any) -> None:
    """Record where the files of the job are, if they were moved without the run directory.

    The paths of the stored job stay as they were written, because the places map them.
    """
    if job.places and is_left(run.manifest, run.path, job.folder):
        with run.locked():
            run.update(**place_entries(job.folder, run.manifest["places"], run.path))


@contextmanager
def creation_errors(where: Path) -> Iterator[None]:
    """Convert errors of the operating system about a new run directory into JobError.

    A full disk is a TransientError.
    """
    try:
        with disk_errors(where):
            yield
    except (OSError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not possible"
        raise JobError("run directory", f"cannot create {where} ({reason})", "a writable location",
                       "choose another --run-dir") from None  # fmt: skip


def create_directory(where: Path, files: Files) -> bool:
    """Create a run directory with its first files, the manifest last; return False if another process created it.

    `files` maps names to contents. An existing folder is filled only if it has no other files than an interrupted
    creation leaves.
    """
    if is_local(where) and not where.exists() and _rename_into_place(where, files):
        return True
    if not _is_resumable(where, files):
        if present(where / MANIFEST):  # another process created it
            return False
        raise JobError("run directory", f"{where} exists and is not a run directory", "a new or empty directory",
                       "choose another --run-dir")  # fmt: skip
    return _fill(where, files)


def check_folder_names(field: str, names: Iterable[str]) -> None:
    """Raise JobError for two names of one folder on macOS or Windows, and for a name that Windows reserves.

    Names are compared in the normal form NFC without regard to case, as file systems of macOS and Windows do. `field`
    is that of the error.
    """
    folders: dict[str, str] = {}
    for name in names:
        other = folders.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise JobError(field, f"{other!r} and {name!r}, which are one folder on macOS and Windows",
                           "names that differ without regard to case", "rename one")  # fmt: skip
        if WINDOWS and RESERVED.fullmatch(name):
            raise JobError(field, f"{name!r}, a name that Windows reserves", "another name", "rename it")


def check_outside_data(where: Path, job: Any) -> None:
    """Raise JobError for a run directory inside a folder of data, whose files would be those of the run too."""
    for path in (section.path for section in job.tables.values()):
        if is_local(where) and os.path.isdir(path) and Path(real(str(where))).is_relative_to(real(path)):
            raise JobError("--run-dir", f"{where}, which is inside the data folder {path}", "a folder outside the data",
                           "choose another with --run-dir (Python: run_dir=)")  # fmt: skip


def _rename_into_place(where: Path, files: Files) -> bool:
    """Return whether this process created the folder; False if another process created it first.

    Files are written into a hidden draft with a random name, which is then renamed, so that the folder is never seen
    half written. Drafts of the same folder are removed.
    """
    name = hashlib.sha256(os.fsencode(where.name)).hexdigest()[:16]
    draft = where.with_name(f".{name}-{secrets.token_hex(8)}.new")
    try:
        draft.mkdir(parents=True)
        for file, content in files.items():
            write_whole(draft / file, content)
        os.rename(draft, where)
        for other in where.parent.glob(f".{name}-*.new"):  # of killed processes, or of one that finds `where` now
            shutil.rmtree(other, ignore_errors=True)
    except OSError:
        if where.exists():
            return False
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _fill(where: Path, files: Files) -> bool:
    """Write the files of a new run into an existing folder or a prefix of a store, the manifest last.

    Return whether this process created the manifest; False if another process was first.
    """
    *others, (manifest_name, manifest) = files.items()
    if not is_local(where):
        check_conditional(where)  # the store must refuse a second creation of an object
    for name, content in others:
        write_whole(where / name, content)
    return create(where / manifest_name, manifest)


def _is_resumable(where: Path, files: Files) -> bool:
    """Return whether the folder contains only files of an interrupted creation of this run."""
    if is_local(where) and not where.is_dir():
        return False
    return all(_is_draft_file(where / name, files) for name in listed(where))


def _is_draft_file(path: Path, files: Files) -> bool:
    """Return whether a path is part of an interrupted creation of a run with these files, and may be replaced.

    `files` has the content of the first files by name. A manifest completes the creation, so it is never part of a
    draft.
    """
    if path.name in files and path.name != MANIFEST:
        return _content(path) == files[path.name]  # else it may be the user's own job.toml
    # the first files in a folder of this name, by their paths inside
    inside = {name.partition("/")[2]: content for name, content in files.items() if name.startswith(f"{path.name}/")}
    if inside and path.is_dir():
        return _is_resumable(path, inside)
    return path.name == EMPTY_DISK or path.name.startswith(PROBE) or is_partial(path)


def _content(path: Path) -> bytes:
    """Return the bytes of a file, empty if it does not exist."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return b""


def latest_directory(base: Path, mine: Callable[[Path], bool]) -> tuple[Path, int]:
    """Return the directory of the latest run of a job and its number; the first free ones if there is none.

    Parameters
    ----------
    base : Path
        Directory of the first run of the job; those of later runs have "-2", "-3" and so on appended.
    mine : callable
        Returns whether a directory is that of a run of the job.
    """
    numbers = _numbers(base)
    of_job = [number for number in numbers if mine(numbered_path(base, number))]
    taken = [number for number in numbers if present(numbered_path(base, number) / MANIFEST)]  # by runs of any job
    number = max(of_job) if of_job else max(taken, default=0) + 1
    return numbered_path(base, number), number


def unfinished_stage(path: Path) -> str:
    """Return the first requested stage that is not finished; for a run that cannot be opened only measuring counts.

    The result is "" if all requested stages are finished.
    """
    stages = read_manifest(path)["stages"]
    try:
        run = open_run(path)
        wanted = [stage.name for stage in run.stages.values() if stage.is_enabled(run)]
    except DpscaleError:
        wanted = ["measure"]
    return next((name for name in wanted if stages.get(name, {}).get("state") != "done"), "")


def next_directory(base: Path, mine: Callable[[Path], bool]) -> tuple[Path, int]:
    """Return the directory of a new release and its number.

    Parameters
    ----------
    base : Path
        Directory of the first run of the job.
    mine : callable
        Returns whether a directory is that of a run of the job.

    Raises
    ------
    JobError
        If the latest run is not finished.
    """
    last, number = latest_directory(base, mine)
    if not mine(last):  # the job has no run yet
        return last, number
    stage = "" if read_manifest(last).get("ended") else unfinished_stage(last)
    if stage:
        what = "is not measured" if stage in ("discover", "plan", "measure") else f"its stage {stage} is not finished"
        raise JobError("--fresh", f"{last} was started and {what}", "a job whose latest run is finished",
                       f"resume it with --run-dir {last} without --fresh, or `dpscale job end {last}`")  # fmt: skip
    number = max(_numbers(base)) + 1
    return numbered_path(base, number), number


def numbered_path(base: Path, number: int) -> Path:
    """Return the directory of run `number`."""
    return base if number == 1 else base.with_name(f"{base.name}-{number}")


def _numbers(base: Path) -> set[int]:
    """Return the numbers of existing paths with the names of runs, which need not be runs.

    The name of run 1 is that of `base`; that of run n ≥ 2 has "-n" appended.
    """
    pattern = re.compile(re.escape(base.name) + r"(?:-([2-9]|[1-9][0-9]{1,8}))?")
    numbers = set[int]()
    for name in listed(base.parent):
        match = pattern.fullmatch(name)
        if match is not None:
            numbers.add(int(match[1] or 1))
    return numbers


def contains_job(where: Path, digests: Sequence[str], folder: Path | None = None) -> bool:
    """Return whether a directory is that of a run of a job.

    Parameters
    ----------
    where : Path
    digests : sequence of str
        Digests of the job by all versions.
    folder : Path, optional
        Folder of the job file. An equal job in another folder whose files are still there is another job.
    """
    if not present(where / MANIFEST):
        return False
    manifest = read_manifest(where)
    if manifest["job_sha256"] not in digests:
        return False
    return folder is None or not manifest.get("places") or is_of_folder(manifest, where, folder)


def content_of(kind: str) -> type[Content]:
    """Return the class of the content of a run, by the kind of its job."""
    found: type[Content] = load_kind(CONTENTS[kind])
    return found


def read_job(job: str | Path | Mapping[str, Any], data: Mapping[str, Any] | None = None) -> Job:
    """Return the job of a file or of its content; the file of a run directory is read with the places of its files.

    `data` has keys of [data] that the job may leave out.
    """
    content, folder = job_content(job)
    if is_path(job) and present(folder / MANIFEST) and place(job).name == JOB_FILE:  # type: ignore[arg-type]
        return read_stored(folder, read_manifest(folder))
    if data and isinstance(content.get("data"), Mapping):
        content = {**content, "data": {**data, **content["data"]}}
    return Job.parse(content, folder)


def open_run(path: str | Path) -> Run:
    """Open a run directory. Raises JobError if it is none."""
    where = resolve_path(path)
    with disk_errors(where), store_errors(where):
        if not present(where / MANIFEST):
            raise _no_run(where)
        manifest = read_manifest(where)
        check_version(where, manifest)
        kind = read_stored(where, manifest).kind
    return Run(where, content_of(kind))


def _no_run(where: Path) -> JobError:
    """Return the error for a path that is no run directory: another one if it is part of a run.

    The part of a run has a manifest in a folder above it.
    """
    whole = next((folder for folder in where.parents if present(folder / MANIFEST)), None)
    if whole is not None:
        return JobError("run directory", f"{where} is part of the run in {whole}, whose parts are charged together",
                        "the directory of the whole run", "run the command there")  # fmt: skip
    return JobError("run directory", f"{where} is not one",
                    "a directory that `dpscale run` or `dpscale plan --run-dir` created", "check the path")  # fmt: skip


def open_readable(path: str | Path) -> Any:
    """Open a run directory, or a part of it that has answers of its own; see `open_part`.

    Values of a period are combined with those of other periods, so they are no answers.
    """
    found = open_part(path)
    if isinstance(found, Part) and "reconstruct" not in found.stages:
        raise JobError("run directory", f"{found.path} has measured values and no answers", "a folder with answers",
                       f"name one in it, as {found.path / 'period'}, or the run: {found.run_path}")  # fmt: skip
    return found.run if isinstance(found, Part) and not found.folder else found


def open_part(path: str | Path) -> Any:
    """Open a part of a run by the path of its files: the only table of a run directory, or a folder in it.

    Raises JobError if the path is none.
    """
    where = resolve_path(path)
    for folder in (where, *where.parents):
        if present(folder / MANIFEST):
            run = open_run(folder)
            inside = "" if folder == where else slashed(where.relative_to(folder))
            part = run.content.part_at(inside)
            return run if part is None else part
    return open_run(where)
