"""Run directory of a job: manifest, stages, noise key and lock, whatever the job consists of.

A file lock admits one process at a time. A finished stage stays finished, because the files that the job fixes never
change. The manifest is cached in memory, written through, and read again when another process has changed it.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from dpscale.base.errors import DataError, DpscaleError, JobError, PlanError
from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.domain.public_totals import condition_of
from dpscale.job.places import DIGEST_VERSION, is_left, place_entries
from dpscale.ledger.job_entry import JobEntry
from dpscale.privacy.accounting import Cost
from dpscale.privacy.attack_risk import AttackRisk
from dpscale.privacy.secret import SecretFile, destroy_secret, read_secret, secret_tag
from dpscale.runs.create import (
    check_outside_data,
    contains_job,
    create_directory,
    creation_errors,
    latest_directory,
    next_directory,
    resolve_path,
    unmeasured_stage,
)
from dpscale.runs.manifest import MANIFEST, ManifestCache, check_version, disk_errors, output_digest, stage_output
from dpscale.runs.stages import Stage
from dpscale.runs.stages.preflight import check_first_release
from dpscale.storage.files import (
    is_local,
    open_in_place,
    present,
    read_bytes,
    remove_partial,
    store_errors,
    write_whole,
)
from dpscale.storage.links import check_tree
from dpscale.storage.lock import free, locked

FINISHED, ABANDONED = "finished", "abandoned"
DRIVER_STATUS, STOP_REQUEST = "driver.json", "cancel"  # written without the lock of the directory
UNREADABLE = (DataError, JobError, PlanError)  # of runs whose files are damaged or whose data are gone
FirstUnfinished = Callable[[Path], str]


@dataclass(frozen=True)
class NewRun:
    """Content of a run directory that does not exist yet.

    Attributes
    ----------
    digest : str
        Digest of the job.
    files : callable
        Maps the number of the run among those of the job to its first files, the manifest last. With a seed its
        release id follows from version 1 of the digest, so that the draws stay.
    inputs : tuple
        Objects read from the job's files: arguments of the checks before creation, and known to the new run.
    earlier : tuple of str
        Digests of the job by earlier versions, whose runs are reopened.
    """

    digest: str
    files: Callable[[int], dict[str, bytes]]
    inputs: tuple[Any, ...] = ()
    earlier: tuple[str, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """All digests of the job, the current one first."""
        return (self.digest, *self.earlier)

    def first_files(self, number: int, job: Any, where: Path, fresh: bool) -> dict[str, bytes]:
        """Return the first files of a run in a directory, the manifest last."""
        files = self.files(number)
        entries = {
            "job_sha256": self.digest,
            "job_version": DIGEST_VERSION,
            **place_entries(job.folder, job.places, where),
        }
        manifest = json.loads(files[MANIFEST]) | entries | ({"fresh": True} if fresh else {})
        return {**files, MANIFEST: json.dumps(manifest, indent=2).encode()}


class Run(ABC):
    """Run of a job; `create` makes its directory or reopens that of an earlier run."""

    job: Any
    job_class: ClassVar[Any]
    stages: ClassVar[Mapping[str, Stage]]
    is_part = False  # whether another run charges for it and ends it
    created = ""  # created by this call: "folder", or "files" in an existing folder

    def __init__(self, path: str | Path, inputs: tuple[Any, ...] = ()) -> None:
        """Open a run directory.

        Parameters
        ----------
        path : str or Path
        inputs : tuple, optional
            The job and `NewRun.inputs`, if this process has just created the directory; otherwise files are read.

        Raises
        ------
        JobError
            If `path` is not a run directory of this kind, or its job or domain file was edited.
        """
        self.path = resolve_path(path)
        with disk_errors(self.path), store_errors(self.path):
            if not present(self.path / MANIFEST):
                raise JobError("run directory", f"{self.path} is not one",
                               "a directory that `dpscale run` or `dpscale plan --run-dir` created",
                               "check the path")  # fmt: skip
            self._manifest_cache = ManifestCache(self.path)
            check_version(self.path, self.manifest)
            self._load(inputs)

    @abstractmethod
    def _load(self, inputs: tuple[Any, ...]) -> None:
        """Read the job; raise JobError if a file that the job fixes was edited."""

    @classmethod
    @abstractmethod
    def _prepare(cls, job: Any) -> NewRun:
        """Return the content of a new directory for a job; raise JobError for a job that cannot run."""

    @classmethod
    def create(
        cls,
        job: Any,
        path: str | Path | None = None,
        fresh: bool = False,
        first_unfinished: FirstUnfinished = unmeasured_stage,
        preflight: bool = False,
        number: int | None = None,
    ) -> Self:
        """Create the run directory of a job, or reopen it.

        Parameters
        ----------
        job : Job
        path : str or Path, optional
            By default it is runs/ plus the first digits of the job's digest, and the latest run of the job is reopened.
        fresh : bool
            Create another directory next to the existing one.
        first_unfinished : callable
            Returns the first unfinished stage of a run directory, which prevents a fresh one; "" if there is none.
        preflight : bool
            Whether to check the job before a directory is created; its data and its ledger must be accessible.
        number : int, optional
            Number of the run, if it is part of a run with this number.
        """
        new = cls._prepare(job)
        base = resolve_path(path if path is not None else _default_base(new.digests))
        mine = partial(contains_job, digests=new.digests, folder=None if path is not None else job.folder)
        with store_errors(base), creation_errors(base):
            where, found_number = _place(base, mine, first_unfinished if fresh else None, named=path is not None)
            if (missing := not present(where / MANIFEST)) and preflight:
                check_outside_data(where, job)
                check_first_release(job, new.digest, fresh)
                cls._preflight(job, new.inputs)
            found = is_local(where) and where.is_dir()
            created = missing and create_directory(where, new.first_files(number or found_number, job, where, fresh))
        run = cls(where, (job, *new.inputs) if created else ())
        if run.manifest["job_sha256"] not in new.digests:
            raise JobError("run directory", f"{where} contains another job", "the directory of this job, or a new one",
                           "choose another --run-dir")  # fmt: skip
        run.created = ("files" if found else "folder") if created else ""
        if not created:
            run._take_places(job)
            run._reopen(job)
        return run

    def _take_places(self, job: Any) -> None:
        """Record where the files of the job are, if they were moved without the run directory.

        The paths of the stored job stay as they were written, because the places map them.
        """
        if job.places and is_left(self.manifest, self.path, job.folder):
            with self.locked():
                self.update(**place_entries(job.folder, self.manifest["places"], self.path))

    @property
    def job_entry(self) -> JobEntry:
        """Job of the run as the ledger records it."""
        manifest = self.manifest
        digest = f"{manifest.get('job_version', 1)}:{manifest['job_sha256']}"
        return JobEntry(digest, manifest["release"], str(self.path), self.job.files, bool(manifest.get("fresh")))

    @classmethod
    @abstractmethod
    def _preflight(cls, job: Any, inputs: tuple[Any, ...]) -> None:
        """Raise an error for a job that would be refused later for known reasons; `inputs` are `NewRun.inputs`."""

    @classmethod
    @abstractmethod
    def table_jobs(cls, job: Any) -> Mapping[str, Any]:
        """Return the jobs of the private tables by name, with their share of the budget."""

    @classmethod
    def overview(cls, job: Any) -> dict[str, Any]:
        """Return the neighbouring relation of a job and the division of its budget, before data are read.

        The result is empty if the budget is not divided.
        """
        return {}

    @abstractmethod
    def _reopen(self, job: Any) -> None:
        """Take over settings of the job that may change without cost."""

    @property
    @abstractmethod
    def data_paths(self) -> list[str]:
        """Paths of the data of all tables, as the job gives them."""

    @abstractmethod
    def changed_data(self) -> dict[str, list[str]]:
        """Return what changed since measuring, by the key of the job: size, time or number of files, or the version.

        The result is empty if the data no longer exist or the run did not record them.
        """

    @abstractmethod
    def open_data(self) -> Mapping[str, Any]:
        """Return the tables of files that the run reads, by the key of the job; empty if they are not compared."""

    @property
    def uses_footers(self) -> bool:
        """Whether the content of a file is that of its footer."""
        return False

    @property
    @abstractmethod
    def tables(self) -> Mapping[str, Any]:
        """Runs of the private tables by name; a run of one table is its own, by the name "data"."""

    @property
    def table(self) -> Any:
        """Run of the only table. Raises JobError if there are several."""
        if "data" not in self.tables:
            names = list(self.tables)
            raise JobError("run directory", f"{self.path} has the tables {', '.join(names)}", "one table",
                           f"name one: release.tables[{names[0]!r}], or {self.path / 'tables' / names[0]}")  # fmt: skip
        return self.tables["data"]

    @abstractmethod
    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        """Return the synthetic rows; `read` maps the files of a table, and a reader of their columns, to its rows."""

    @property
    @abstractmethod
    def protects(self) -> Any:
        """Privacy unit of the job."""

    @property
    @abstractmethod
    def spent(self) -> Cost:
        """Cost of all draws."""

    @property
    def pooled_cost(self) -> Cost:
        """Cost of all draws that the answers use: of the run, and of the earlier releases that it refines."""
        earlier = (self.manifest.get("refines") or {}).get("releases", ())
        return sum((Cost.from_dict(one["cost"]) for one in earlier), self.spent)

    @property
    def attack_risk(self) -> AttackRisk:
        """Attack risk of the answers; condition on public totals of the same records included."""
        swaps = any(condition_of(one.domain.public_totals) for one in self.tables.values())
        return AttackRisk.of(self.pooled_cost, self.protects, swaps, self.manifest["private"])

    @property
    def public_domains(self) -> Mapping[str, Any]:
        """Domains of the public tables by name."""
        return {}

    @property
    def steps(self) -> Mapping[str, int]:
        """By private table, the number of neighbours of its run that connect two neighbours of the job."""
        return dict.fromkeys(self.tables, 1)

    @property
    def links(self) -> Sequence[Any]:
        """Links between the tables, each with its share of the budget."""
        return ()

    @property
    def joins(self) -> Mapping[str, Any]:
        """Runs of the joins of several tables, by name."""
        return {}

    def components(self) -> Mapping[str, Any]:
        """Return the components by name; empty for a run that is one table."""
        return {}

    @property
    def pair_tables(self) -> tuple[str, ...]:
        """Names of the tables of pairs."""
        return ()

    @property
    def parts(self) -> Mapping[str, Any]:
        """Runs of the tables that have a directory of their own, as far as they have started."""
        return {}

    @property
    def manifest(self) -> dict[str, Any]:
        """A copy of the manifest: identity and progress of the run. Use `update` to change it."""
        return self._manifest_cache.read()

    def update(self, **changes: object) -> None:
        """Change entries of the manifest."""
        self._manifest_cache.write(self.manifest | changes)

    @property
    def ended(self) -> dict[str, Any] | None:
        """How and when `dpscale job end` ended the run; None if it did not."""
        ended: dict[str, Any] | None = self.manifest.get("ended")
        return ended

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    @property
    def secret(self) -> SecretFile:
        """Path and public tag of the noise key."""
        return SecretFile(self.secret_path, self.manifest["secret_tag"])

    def destroy_key(self) -> None:
        """Destroy the noise key, including one that was only partly written."""
        for secret in (self.secret_path, self.secret_path.with_suffix(".partial")):
            destroy_secret(secret)
        if self.manifest["secret"] not in (None, "destroyed"):
            self.update(secret="destroyed")

    def read_matching_key(self) -> bytes | None:
        """Return the noise key if it is present and matches the manifest's tag; another key would draw fresh noise."""
        if not present(self.secret_path):
            return None
        secret = read_secret(self.secret_path)
        return secret if secret_tag(secret) == self.manifest["secret_tag"] else None

    def done(self, stage: str) -> bool:
        """Return whether a stage is done and its output still exists."""
        entry = self.manifest["stages"].get(stage, {})
        return entry.get("state") == "done" and present(self.path / stage_output(stage, entry)[1])

    def states(self, driven: bool = False) -> dict[str, str]:
        """Return the state of every started stage: running, done, failed, cancelled or stopped.

        A stage whose process no longer exists is stopped. Set `driven` if a driver on another machine is known to
        run, because locks of some file systems are not visible to other machines.
        """
        states = {name: str(stage["state"]) for name, stage in self.manifest["stages"].items()}
        if "running" in states.values() and not driven and free(self.path):
            states = {name: "stopped" if state == "running" else state for name, state in states.items()}
        return states

    def require(self, stage: str) -> None:
        """Raise JobError unless the stage is done."""
        if not self.done(stage):
            self.check_open(stage)
            raise self._undone(stage)

    def check_open(self, stage: str) -> None:
        """Raise JobError if the run was abandoned before this stage was done."""
        ended = self.ended
        if ended and ended["how"] == ABANDONED:
            got = f"{self.path} was ended on {ended['at'][:10]}, before stage {stage} was done"
            raise JobError("run directory", got, "a run that was not ended",
                           "start a new run with --fresh, which is a new release")  # fmt: skip

    def _undone(self, stage: str) -> JobError:
        return JobError("run directory", f"stage {stage} is not done", "a run whose earlier stages are done",
                        f"run `dpscale run {self.path} --only {stage}` first")  # fmt: skip

    @contextmanager
    def record_stage(self, stage: Stage, each: ParallelMap = serial_map) -> Iterator[None]:
        """Mark a stage as running, then as done with the hash of its files; on an error as failed or stopped.

        `each` is the parallel map that hashes the files.
        """
        self._mark(stage.name, start=now(), state="running", end=None)
        try:
            yield
        except BaseException as error:
            with suppress(OSError, DpscaleError):  # for example on a full disk; the original error is raised
                self._mark(stage.name, end=now(), state=_state_after(error))
            raise
        if stage.folder:
            remove_partial(self.path / stage.folder, nested=True)
        digest = output_digest(self.path, self.path / stage.folder, each) if stage.folder else self._parts_digest(stage)
        self._mark(stage.name, end=now(), state="done", sha256=digest, folder=stage.folder, leaves=stage.leaves)

    def _parts_digest(self, stage: Stage) -> str:
        """Return the hash of the outputs of a stage in all parts, each of which checks its own."""
        found = {name: one.manifest["stages"].get(stage.name, {}).get("sha256") for name, one in self.parts.items()}
        return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for this process and read the manifest again.

        Raises TransientError if another process works in the directory, and JobError if it contains a symbolic link.
        """
        with locked(self.path):
            if is_local(self.path):
                check_tree(self.path)
            self._manifest_cache.forget()
            yield

    def _mark(self, stage: str, **changes: object) -> None:
        manifest = self.manifest
        manifest["stages"].setdefault(stage, {}).update(changes)
        self._manifest_cache.write(manifest)
        self._log(json.dumps({"time": now(), "stage": stage, "state": changes.get("state")}) + "\n")

    def _log(self, line: str) -> None:
        path = self.path / "log.jsonl"
        if is_local(path):
            with os.fdopen(open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as log:
                log.write(line)
        else:  # objects of a store cannot be appended to
            write_whole(path, (read_bytes(path) if present(path) else b"") + line.encode())


def _default_base(digests: Sequence[str]) -> Path:
    """Return the directory of the first run of a job: that of an earlier version if it exists."""
    bases = [Path("runs") / one[:12] for one in digests]
    return next((base for base in bases if contains_job(resolve_path(base), digests)), bases[0])


def _place(
    base: Path, mine: Callable[[Path], bool], first_unfinished: FirstUnfinished | None, named: bool
) -> tuple[Path, int]:
    """Return the directory and its number among those of a job; `first_unfinished` is given for a fresh one."""
    if named and present(base / MANIFEST) and not mine(base):
        return base, 1  # refused, because it contains another job
    if first_unfinished:
        return next_directory(base, mine, first_unfinished)
    return (base, 1) if named else latest_directory(base, mine)


def _state_after(error: BaseException) -> str:
    """Return the state of a stage that ended with an error; an interrupt or `cancel` means stopped, not failed."""
    return "stopped" if isinstance(error, KeyboardInterrupt) else str(getattr(error, "state", "failed"))


def now() -> str:
    """Return the current UTC time in the format of manifests and logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
