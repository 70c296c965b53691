"""Run directory of a job: manifest, stages, noise key and lock, whatever the job consists of.

A file lock admits one process at a time. A finished stage stays finished, because the files that the job fixes never
change. The manifest is cached in memory, written through, and read again when another process has changed it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.errors import DataError, DpscaleError, JobError, PlanError
from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.domain import Domain
from dpscale.domain.public_totals import condition_of
from dpscale.job import Job
from dpscale.job.data import place_entries
from dpscale.job.job import DIGEST_VERSION, job_digest
from dpscale.ledger.rows import JobEntry
from dpscale.privacy.accounting import Cost
from dpscale.privacy.attack_risk import AttackRisk
from dpscale.privacy.protection import Protection
from dpscale.privacy.secret import SecretFile, destroy_secret, read_secret, secret_tag
from dpscale.runs.manifest import (
    JOB_FILE,
    MANIFEST,
    ManifestCache,
    check_output,
    check_version,
    disk_errors,
    first_manifest,
    output_digest,
    resolve_path,
    stage_output,
)
from dpscale.runs.stage import Stage
from dpscale.storage.files import (
    check_tree,
    is_local,
    open_in_place,
    present,
    read_bytes,
    remove_partial,
    store_errors,
    write_whole,
)
from dpscale.storage.lock import free, locked

FINISHED, ABANDONED = "finished", "abandoned"
DRIVER_STATUS, STOP_REQUEST = "driver.json", "cancel"  # written without the lock of the directory
# entries of the manifest for charges, and the ends of their release ids on the ledger
ENTRIES = {"privacy": "", "discovery": "-domain", "units": "-units", "allocation": "-allocation"}
KEYS = ("secret", "secret_tag")  # facts about a noise key
# entries of the manifest that hold for all parts
COMMON = ("version", "private", "job_sha256", "job_version", "versions", "mechanism", "ids", "secret", "secret_tag",
          *ENTRIES, "ended", "number", "fresh", "empty", "ledger", "ledger_link")  # fmt: skip
UNREADABLE = (DataError, JobError, PlanError)  # of runs whose files are damaged or whose data are gone


@dataclass(frozen=True)
class NewRun:
    """Content of a run directory that does not exist yet.

    Attributes
    ----------
    job : Job
    files : callable
        Returns the first files beside the job and the manifest.
    entries : mapping
        Entries of the first manifest that follow from the job.
    domain : Domain, optional
        Domain of the only table.
    inputs : tuple
        Objects read from the job's files: arguments of the checks before creation, and known to the new run.
    """

    job: Job
    files: Callable[[], dict[str, bytes]]
    entries: Mapping[str, Any]
    domain: Domain | None = None
    inputs: tuple[Any, ...] = ()

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of the job by all versions, the current one first; runs of earlier ones are reopened."""
        return tuple(job_digest(self.job, self.domain, version) for version in (DIGEST_VERSION, 1))

    @property
    def digest(self) -> str:
        """Digest of the job."""
        return self.digests[0]

    def first_files(self, number: int, where: Path, fresh: bool) -> dict[str, bytes]:
        """Return the first files of a run in a directory, the manifest last.

        With a seed the release id follows from version 1 of the digest and the number of the run, so that a later
        version of the digest does not change the draws. `fresh` records that the run is another one of the same job.
        """
        manifest = first_manifest(self.job.engine.seed, self.digests[1], number, **self.entries)
        manifest |= {"job_sha256": self.digest, "job_version": DIGEST_VERSION}
        manifest |= place_entries(self.job.folder, self.job.places, where) | ({"fresh": True} if fresh else {})
        return {
            **self.files(),
            JOB_FILE: tomli_w.dumps(self.job.to_dict()).encode(),
            MANIFEST: json.dumps(manifest, indent=2).encode(),
        }


class Content:
    """Tables of a run: its job, the parts that draw, and the files that they read. It writes no manifest.

    These are the members of a run of one table, the part "data", whose files are in the run directory itself.
    """

    stages: Mapping[str, Stage]
    job: Job
    table: Any
    periods: Sequence[str] = ()  # labels of those that the release reads; every period if empty
    is_complete = True  # whether nothing remains to be drawn after the measure stage

    @classmethod
    def prepare(cls, job: Job) -> NewRun:
        """Return the content of a new directory for a job; raise JobError for a job that cannot run."""
        raise NotImplementedError

    @classmethod
    def preflight(cls, job: Job, inputs: tuple[Any, ...]) -> None:
        """Raise an error for a job that would be refused later for known reasons; `inputs` are `NewRun.inputs`."""

    def reopen(self, job: Job) -> None:
        """Take over settings of the job that may change without cost."""

    def begin(self) -> None:
        """Decide, before a first stage, what the job leaves open: nothing in a job of one table."""

    def file_stamps(self) -> list[Any]:
        """Return sizes and times of the files that several tables share; empty for a table that checks its own."""
        return []

    @property
    def data_paths(self) -> list[str]:
        """Paths of the data of all tables, as the job gives them."""
        return [table.path for table in self.job.tables.values()] + [link.via for link in self.job.link if link.via]

    def changed_data(self) -> dict[str, list[str]]:
        """Return what changed since measuring, by the key of the job: size, time or number of files, or the version.

        The result is empty if the data no longer exist or the run did not record them.
        """
        found: dict[str, list[str]] = self.table.changed_data()
        return found

    def open_data(self) -> Mapping[str, Any]:
        """Return the tables of files that the run reads, by the key of the job; empty if they are not compared."""
        found: Mapping[str, Any] = self.table.open_data()
        return found

    @property
    def uses_footers(self) -> bool:
        """Whether the content of a file is that of its footer."""
        return all(table.snapshot == "footers" for table in self.job.tables.values())

    @property
    def amount(self) -> float:
        """Budget of the measurements, squared μ or ε."""
        return float(self.table.job.row_budget(self.table.declared).amount)

    @property
    def declared_domains(self) -> Sequence[Domain]:
        """Domains of the private tables as the job states them."""
        return [self.table.declared]

    @property
    def domain_file(self) -> str | None:
        """Domain file of the only table in the run directory; None of several tables."""
        found: str = self.table.domain_file
        return found

    @property
    def tables(self) -> Mapping[str, Any]:
        """Parts of the private tables by name; the only table has the name "data"."""
        return {"data": self.table}

    @property
    def joins(self) -> Mapping[str, Any]:
        """Parts of the joins of several tables, by name."""
        return {}

    @property
    def links(self) -> Sequence[Any]:
        """Links between the tables, each with its share of the budget."""
        return ()

    @property
    def parts(self) -> Mapping[str, Any]:
        """All parts by name, each after those that it depends on."""
        return {self.table.name: self.table}

    def part_at(self, folder: str) -> Any:
        """Return the part with a folder of the run directory; None if there is none."""
        return None if folder else self.table

    @property
    def protects(self) -> Protection:
        """Privacy unit of the job."""
        found: Protection = self.table.protects
        return found

    @property
    def steps(self) -> Mapping[str, int]:
        """By private table, the number of neighbours of the table that connect two neighbours of the job."""
        return {"data": 1}

    @property
    def public_domains(self) -> Mapping[str, Domain]:
        """Domains of the public tables by name."""
        return {name: self.job.domains[name] for name, table in self.job.tables.items() if table.public}

    @property
    def pair_tables(self) -> tuple[str, ...]:
        """Names of the tables of pairs."""
        return tuple(link.called for link in self.job.link if link.via)

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        """Return the synthetic rows; `read` maps the files of a table, and a reader of their columns, to its rows."""
        return self.table.read_synthetic(read)


class StageRecords:
    """States of the stages of a run or of a part, and facts about it, in the manifest of the run."""

    path: Path
    stages: Mapping[str, Stage]

    @property
    def run_path(self) -> Path:
        """Run directory."""
        return self.path

    @property
    def manifest(self) -> dict[str, Any]:
        """A copy of the facts. Use `update` to change them."""
        raise NotImplementedError

    def update(self, **changes: object) -> None:
        """Change facts."""
        raise NotImplementedError

    def done(self, stage: str) -> bool:
        """Return whether a stage is done and its output still exists."""
        entry = self.manifest["stages"].get(stage, {})
        return entry.get("state") == "done" and present(self.path / stage_output(stage, entry)[1])

    def require(self, stage: str) -> None:
        """Raise JobError unless the stage is done."""
        if not self.done(stage):
            self.check_open(stage)
            raise self.undone(stage)

    @property
    def ended(self) -> dict[str, Any] | None:
        """How and when `dpscale job end` ended the run; None if it did not."""
        ended: dict[str, Any] | None = self.manifest.get("ended")
        return ended

    def check_open(self, stage: str) -> None:
        """Raise JobError if the run was abandoned before this stage was done."""
        ended = self.ended
        if ended and ended["how"] == ABANDONED:
            got = f"{self.path} was ended on {ended['at'][:10]}, before stage {stage} was done"
            raise JobError("run directory", got, "a run that was not ended",
                           "start a new run with --fresh, which is a new release")  # fmt: skip

    def undone(self, stage: str) -> JobError:
        """Return the error for a stage that is not done."""
        return JobError("run directory", f"stage {stage} is not done", "a run whose earlier stages are done",
                        f"run `dpscale run {self.run_path} --only {stage}` first")  # fmt: skip

    @property
    def secret_path(self) -> Path:
        """File of the noise key."""
        raise NotImplementedError

    def destroy_key(self) -> None:
        """Destroy the noise key, including one that was only partly written."""
        for secret in (self.secret_path, self.secret_path.with_suffix(".partial")):
            destroy_secret(secret)
        if self.manifest["secret"] not in (None, "destroyed"):
            self.update(secret="destroyed")

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
        digest = output_digest(self.path, self.path / stage.folder, each) if stage.folder else self._digest_of(stage)
        self._mark(stage.name, end=now(), state="done", sha256=digest, folder=stage.folder, leaves=stage.leaves)

    def _digest_of(self, stage: Stage) -> str:
        """Return the hash of the outputs of a stage in the parts, each of which has its own."""
        raise NotImplementedError

    def _mark(self, stage: str, **changes: object) -> None:
        stages = self.manifest["stages"]
        self.update(stages={**stages, stage: {**stages.get(stage, {}), **changes}})
        self._log(stage, changes.get("state"))

    def _log(self, stage: str, state: object) -> None:
        raise NotImplementedError


class Run(StageRecords):
    """Run directory of a job; `opening.begin_run` makes one or reopens it.

    Attributes
    ----------
    path : Path
    content : Content
        Tables of the job and the parts that draw.
    created : str
        What this call has created: "folder", or "files" in an existing folder, or nothing.
    release : str
        Release id when the directory was opened.
    """

    def __init__(self, path: str | Path, content: Callable[[Run, tuple[Any, ...]], Content],
                 inputs: tuple[Any, ...] = ()) -> None:  # fmt: skip
        """Open a run directory.

        Parameters
        ----------
        path : str or Path
        content : callable
            Returns the content of a run.
        inputs : tuple, optional
            The job and `NewRun.inputs`, if this process has just created the directory; otherwise files are read.

        Raises
        ------
        JobError
            If `path` is not a run directory, or its job or domain file was edited.
        """
        self.path, self.created = resolve_path(path), ""
        with disk_errors(self.path), store_errors(self.path):
            if not present(self.path / MANIFEST):
                raise JobError("run directory", f"{self.path} is not one",
                               "a directory that `dpscale run` or `dpscale plan --run-dir` created",
                               "check the path")  # fmt: skip
            self._manifest_cache = ManifestCache(self.path)
            check_version(self.path, self.manifest)
            self.release = str(self.manifest["release"])
            self.content = content(self, inputs)

    @property
    def job(self) -> Any:
        return self.content.job

    def requests(self, name: str) -> bool:
        """Return whether an attribute that enables a stage is given, for the run or for one of its tables."""
        is_of_run = getattr(self.content, name, None) is not None
        return is_of_run or any(table.requests(name) for table in self.tables.values())

    @property
    def stages(self) -> Mapping[str, Stage]:  # type: ignore[override]
        return self.content.stages

    @property
    def job_entry(self) -> JobEntry:
        """Job of the run as the ledger records it."""
        manifest = self.manifest
        digest = f"{manifest.get('job_version', 1)}:{manifest['job_sha256']}"
        return JobEntry(
            digest=digest,
            run=manifest["release"],
            run_dir=str(self.path),
            files=self.job.files,
            fresh=bool(manifest.get("fresh")),
        )

    @property
    def parts(self) -> Mapping[str, Any]:
        """All parts by name, each after those that it depends on."""
        return self.content.parts

    @property
    def tables(self) -> Mapping[str, Any]:
        """Parts of the private tables by name; the only table has the name "data"."""
        return self.content.tables

    @property
    def joins(self) -> Mapping[str, Any]:
        """Parts of the joins of several tables, by name."""
        return self.content.joins

    @property
    def links(self) -> Sequence[Any]:
        """Links between the tables, each with its share of the budget."""
        return self.content.links

    @property
    def table(self) -> Any:
        """The only table. Raises JobError if there are several."""
        if "data" not in self.tables:
            names = list(self.tables)
            raise JobError("run directory", f"{self.path} has the tables {', '.join(names)}", "one table",
                           f"name one: release.tables[{names[0]!r}], or {self.path / 'tables' / names[0]}")  # fmt: skip
        return self.tables["data"]

    @property
    def pair_tables(self) -> tuple[str, ...]:
        """Names of the tables of pairs."""
        return self.content.pair_tables

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        """Return the synthetic rows; `read` maps the files of a table, and a reader of their columns, to its rows."""
        return self.content.read_synthetic(read)

    @property
    def protects(self) -> Protection:
        """Privacy unit of the job."""
        return self.content.protects

    @property
    def is_charged(self) -> bool:
        """Whether some parts of the run were charged."""
        return any(self.manifest.get(name) for name in ENTRIES)

    @property
    def spent(self) -> Cost:
        """Cost that was charged, of all entries on the ledger."""
        entries = [self.manifest.get(name) for name in ENTRIES]
        return Cost.total(Cost.from_dict(entry["cost"]) for entry in entries if entry)

    @property
    def pooled_cost(self) -> Cost:
        """Cost of all draws that the answers use: of the run, and of the earlier releases that it refines."""
        earlier = (self.manifest.get("refines") or {}).get("releases", ())
        return sum((Cost.from_dict(release["cost"]) for release in earlier), self.spent)

    @property
    def attack_risk(self) -> AttackRisk:
        """Attack risk of the answers; condition on public totals of the same records included."""
        swaps = any(condition_of(table.domain.public_totals) for table in self.tables.values())
        return AttackRisk.of(self.pooled_cost, self.protects, swaps, self.manifest["private"])

    @property
    def manifest(self) -> dict[str, Any]:
        """A copy of the manifest: identity and progress of the run. Use `update` to change it."""
        return self._manifest_cache.read()

    def update(self, **changes: object) -> None:
        """Change entries of the manifest."""
        self._manifest_cache.write({**self.facts, **changes})

    @property
    def facts(self) -> Mapping[str, Any]:
        """The manifest itself, which the caller does not change."""
        return self._manifest_cache.view()

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    @property
    def secret(self) -> SecretFile:
        """Path and public tag of the noise key."""
        return SecretFile(self.secret_path, self.manifest["secret_tag"])

    def states(self, driven: bool = False) -> dict[str, str]:
        """Return the state of every started stage: running, done, failed, cancelled or stopped.

        A stage whose process no longer exists is stopped. Set `driven` if a driver on another machine is known to
        run, because locks of some file systems are not visible to other machines.
        """
        return self.current_states(self.manifest["stages"], driven)

    def current_states(self, stages: Mapping[str, Any], driven: bool = False) -> dict[str, str]:
        """Return the states of stages by their entries in a manifest; see `states`."""
        states = {name: str(stage["state"]) for name, stage in stages.items()}
        if "running" in states.values() and not driven and free(self.path):
            states = {name: "stopped" if state == "running" else state for name, state in states.items()}
        return states

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

    def done(self, stage: str) -> bool:
        """Return whether a stage is done, nothing of it remains for a part, and its output still exists."""
        return super().done(stage) and all(part.is_done(stage) for part in self.parts.values())

    def require(self, stage: str) -> None:
        """Raise JobError unless the stage is done, or its output so far is complete in itself."""
        if not any(part.offers(stage) for part in self.parts.values()):
            super().require(stage)

    def _digest_of(self, stage: Stage) -> str:
        parts = self.manifest.get("parts", {})
        digests = {name: entry.get("stages", {}).get(stage.name, {}).get("sha256") for name, entry in parts.items()}
        return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()

    def _log(self, stage: str, state: object) -> None:
        self.log({"stage": stage, "state": state})

    def log(self, line: Mapping[str, object]) -> None:
        """Append a line to the log of the run, with the time."""
        text, path = json.dumps({"time": now(), **line}) + "\n", self.path / "log.jsonl"
        if is_local(path):
            with os.fdopen(open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
                log.write(text.encode())
        else:  # objects of a store cannot be appended to
            write_whole(path, (read_bytes(path) if present(path) else b"") + text.encode())


@dataclass(frozen=True)
class DrawFacts:
    """Facts of a draw that its label does not have.

    Attributes
    ----------
    bound : str or dict
        Name of its bound in `Part.facts_of_draws`, or a bound that was planned from released values.
    values : int, optional
        Number of values.
    count : int
        Number of equal draws that are stored as one.
    group : str, optional
        Name of the draws that a unit changes together, by one of the alternative changes of their bounds.
    """

    bound: str | dict[str, Any]
    values: int | None = None
    count: int = 1
    group: str | None = None


@dataclass(frozen=True)
class Journaled:
    """Folder of draws that the journal stores.

    Attributes
    ----------
    entry : str
        Name of the entry of the ledger that pays for the draws.
    folder : Path
    name : callable
        name(label) returns the name of a draw, given its label.
    draws : mapping of str to DrawFacts
        Facts of the draws that must be stored, by name.
    selections : sequence of mapping
        Selections between the draws: `decision`, `count`, `range`, `cost`, `bound`, `scores` and `scale`.
    others : sequence of str
        Names of other files.
    """

    entry: str
    folder: Path
    name: Callable[[Mapping[str, Any]], str]
    draws: Mapping[str, DrawFacts]
    selections: Sequence[Mapping[str, Any]] = ()
    others: Sequence[str] = ()


class Part(StageRecords):
    """Part of a release: the draws of a table, a join, a link, a period or a search, and what later parts read.

    Facts and stages of a part in a folder of its own are in its entry of the manifest; those of a part without a
    folder are those of the run.

    Attributes
    ----------
    run : Run
    name : str
        Name on the ledger and in the manifest, for example "tables.users".
    folder : str
        Folder of its files in the run directory; "" for the directory itself.
    depends_on : tuple of str
        Names of the parts whose released values it reads.
    """

    stages: Mapping[str, Stage] = {}
    job: Any
    depends_on: tuple[str, ...] = ()

    def __init__(self, run: Run, name: str, folder: str = "") -> None:
        self.run, self.name, self.folder = run, name, folder
        self._performed = set[str]()  # stages that this process has performed
        self.path = run.path / folder if folder else run.path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.path})"

    @property
    def run_path(self) -> Path:
        return self.run.path

    def charges(self, entry: str) -> tuple[Cost, object] | None:
        """Return cost and terms of the draws under an entry of the ledger; None if there are none.

        The cost is exact, to one privacy unit of the job. The terms are everything that determines the draws besides
        the job, the data and the noise key, for JSON. Both are known once the part is planned.
        """
        return None

    def check_charge(self, entry: str) -> None:
        """Raise BudgetError before a charge that depends on another fact than the ledger has, or costs too much."""

    def facts_of_draws(self) -> dict[str, Any]:
        """Return public facts that bound the effect of a unit on the draws, for JSON, known once the part is planned.

        Returns
        -------
        dict
            `bounds`: changes of exact counts by name (`runs.statement.bound_of`); `steps`: number of neighbours of the
            part that connect two of the job; `contribution`, `mechanism`, `law`, `sensitivity` and `post_processing`
            in words. Empty if the part has no draws.
        """
        return {}

    @property
    def tables(self) -> Mapping[str, Any]:
        """The part itself, by the name of an only table."""
        return {"data": self}

    @property
    def joins(self) -> Mapping[str, Any]:
        """No joins: a part answers for itself."""
        return {}

    @property
    def table(self) -> Any:
        return self

    @property
    def pair_tables(self) -> tuple[str, ...]:
        return ()

    @property
    def attack_risk(self) -> AttackRisk:
        """Attack risk of the answers of the run."""
        return self.run.attack_risk

    @property
    def spent(self) -> Cost:
        """Cost of its draws; for a table alone, all that was charged."""
        return self.run.spent

    @property
    def journaled(self) -> list[Journaled]:
        """Folders of `StoredDraws` with the draws of the part."""
        return []

    @property
    def drawn_folders(self) -> list[Path]:
        """Folders with drawn values."""
        return []

    @property
    def release(self) -> str:
        """Release id in the labels of noise."""
        return str(self.run.facts["release"])

    @property
    def public_attributes(self) -> list[str]:
        """Attributes that the job declares public although their rows belong to no unit."""
        return []

    @property
    def manifest(self) -> dict[str, Any]:
        """Facts about the part, with those of the run that hold for all parts.

        Facts of the run (COMMON) take precedence, except that a part with a noise key of its own has its own facts
        about it (KEYS).
        """
        if not self.folder:
            return self.run.manifest
        of_run = self.run.facts
        of_part = dict(of_run.get("parts", {}).get(self.name, {}))
        common = {name: of_run[name] for name in COMMON if name in of_run}
        facts = {"part": self.name, "release": self.release, "public_attributes": self.public_attributes}
        keys = {name: of_part[name] for name in KEYS if name in of_part} if self.key_owner is self else {}
        return {"snapshot": None, "stages": {}, **of_part, **common, **keys, **facts}

    def update(self, **changes: object) -> None:
        """Change facts."""
        if not self.folder:
            self.run.update(**changes)
        else:
            parts = self.run.facts.get("parts", {})
            self.run.update(parts={**parts, self.name: {**parts.get(self.name, {}), **changes}})

    def is_done(self, stage: str) -> bool:
        """Return whether nothing of a stage of the run remains for the part once the run has finished it."""
        return not self.folder or stage not in self.manifest["stages"] or StageRecords.done(self, stage)

    def offers(self, stage: str) -> bool:
        """Return whether the output of a stage that is not done yet can be used."""
        return False

    def forget(self) -> None:
        """Forget all facts about the part."""
        parts = self.run.manifest.get("parts", {})
        self.run.update(parts={name: facts for name, facts in parts.items() if name != self.name})

    def destroy_keys(self) -> None:
        """Destroy noise keys of the part beside that of the run."""

    def requests(self, name: str) -> bool:
        """Return whether an attribute that enables a stage is given."""
        return getattr(self, name, None) is not None

    def states(self, driven: bool = False) -> dict[str, str]:
        """Return the state of every started stage; see `Run.states`."""
        return self.run.current_states(self.manifest["stages"], driven)

    def perform(self, stage: str, engine: Any) -> None:
        """Run a stage of the part; that of a part in a folder is recorded, and returns at once if it is done."""
        if not self.folder:
            self.stages[stage].perform(self, engine)
        elif not self.done(stage):
            self._check_inputs(self.stages[stage], engine.each("check"))
            with self.record_stage(self.stages[stage], engine.each("hash")):
                self.stages[stage].perform(self, engine)
            self._performed.add(stage)

    def _check_inputs(self, stage: Stage, each: ParallelMap) -> None:
        """Raise JobError unless earlier stages are done, with unchanged files if another process performed them."""
        for name in stage.needed(self):
            self.require(name)
            if name not in self._performed:
                check_output(self.path, name, self.manifest["stages"].get(name, {}), each)

    @property
    def key_owner(self) -> Run | Part:
        """The run, or a part with a noise key of its own."""
        return self.run

    @property
    def secret_path(self) -> Path:
        """File of the noise key."""
        return self.key_owner.secret_path

    @property
    def secret(self) -> SecretFile:
        """Path and public tag of the noise key."""
        return SecretFile(self.secret_path, self.manifest["secret_tag"])

    def read_matching_key(self) -> bytes | None:
        """Return the noise key if it is present and matches the manifest's tag; another key would draw fresh noise."""
        if not present(self.secret_path):
            return None
        secret = read_secret(self.secret_path)
        return secret if secret_tag(secret) == self.manifest["secret_tag"] else None

    def plan(self, engine: Any) -> None:
        """Choose the measurements. Reads no data."""

    def changed_data(self) -> dict[str, list[str]]:
        """Return what changed since measuring, by the key of the job; see `Content.changed_data`."""
        return {}

    def check_data(self, engine: Any) -> None:
        """Refuse invalid data before the first charge of the run, where it is for searches or numbers of units."""

    def begin(self, engine: Any) -> None:
        """Create the noise key, and refuse what the ledger refuses, before data are read."""

    def check(self, engine: Any) -> None:
        """Read the data and refuse invalid data. Spends nothing; repeated after an interruption."""

    def measure(self, engine: Any) -> None:
        """Draw the noise of all measurements that are not stored, and derive what other parts read."""

    def close(self) -> None:
        """Remove what `check` has read, also after an error."""

    def is_measured(self) -> bool:
        """Return whether all noise is drawn; completes derived files from stored values, and draws nothing."""
        return True

    def reconstruct(self, engine: Any) -> None:
        """Write the answers."""

    def synthesize(self, engine: Any) -> None:
        """Sample the synthetic rows."""

    def report(self, engine: Any) -> None:
        """Write the report of the part."""

    def _log(self, stage: str, state: object) -> None:
        self.run.log({"part": self.name, "stage": stage, "state": state} if self.folder else
                     {"stage": stage, "state": state})  # fmt: skip


def in_order(parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return parts in topological order. Raises JobError for an unknown dependency or a cycle.

    A part waits until the parts in its `depends_on` are ordered; the order of independent parts stays.
    """
    ordered: dict[str, Part] = {}
    while len(ordered) < len(parts):
        waiting = [part for name, part in parts.items() if name not in ordered]
        ready = next((part for part in waiting if ordered.keys() >= set(part.depends_on)), None)
        if ready is None:
            missing = {name for part in waiting for name in part.depends_on if name not in ordered}
            raise JobError("parts", f"{waiting[0].name} depends on {', '.join(sorted(missing))}",
                           "parts without a cycle of dependencies", "remove one of them")  # fmt: skip
        ordered[ready.name] = ready
    return ordered


def _state_after(error: BaseException) -> str:
    """Return the state of a stage that ended with an error; an interrupt or `cancel` means stopped, not failed."""
    return "stopped" if isinstance(error, KeyboardInterrupt) else str(getattr(error, "state", "failed"))


def now() -> str:
    """Return the current UTC time in the format of manifests and logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
