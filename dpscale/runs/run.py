"""A run, opened once: everything that a stage needs and everything that it leaves.

    job.toml  domain.toml  manifest.json  plan/  measurements/  answers/  report.html  log.jsonl

and, from the first draw to the last, secret.key. One process at a time works in it (a file lock); a stage that is
done is done for good, since the job, the domain and the plan in it never change. So they are read once a process. The
manifest is kept in memory and written through; where another process wrote it since, it is read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.errors import DpscaleError, JobError
from dpscale.base.parallel import Each, plainly
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.sections import SynthesizeTable
from dpscale.measurement import Released
from dpscale.mechanisms.contract import Question
from dpscale.plans.measurement_plan import Planned
from dpscale.privacy.secret import SecretPlace, read_secret, secret_tag
from dpscale.records.origin import Origin
from dpscale.runs.create import following, latest, led_to, make, making, unmeasured
from dpscale.runs.fingerprints import digest_left, disk_errors
from dpscale.runs.manifest import MANIFEST, Kept, asked_since, check_version, first_manifest, left_by
from dpscale.runs.stage import Stage
from dpscale.storage.files import is_local, present, read_bytes, store_errors, write_whole
from dpscale.storage.lock import free, locked
from dpscale.workload import Workload

FINISHED, ABANDONED = "finished", "abandoned"
Left = Callable[[Path], str]
Before = Callable[[Job, Domain, Workload], object]
SPELLED_OUT = {"errors": "auto", "agree": False}  # what digests have always held of jobs that do not say


class Run:
    """A run directory that exists. `create` makes one for a job, or reopens the one that the job began."""

    frame: Any = None  # the data, where a call gave them and no path leads to them
    made = ""  # by this call: its "folder", or the "files" in one that was there

    def __init__(self, path: str | Path, known: tuple[Job, Domain] | None = None) -> None:
        """`known`: what its job and domain files say, where this process wrote them."""
        self.path = led_to(path)
        with disk_errors(self.path), store_errors(self.path):
            if not present(self.path / MANIFEST):
                raise JobError("run directory", f"{self.path} is not one",
                               "a directory that `dpscale run` or `dpscale plan --run-dir` made",
                               "check the path")  # fmt: skip
            self._kept = Kept(self.path)
            if self.manifest.get("kind"):
                got = f"{self.path} is of several tables"
                raise JobError("run directory", got, "one table's, as under its tables/",
                               "run its job again to go on, or open it as a DatabaseRelease")  # fmt: skip
            check_version(self.path, self.manifest)
            self.job, self.domain = known or (Job.read(self.path / "job.toml"), Domain.read(self.path / "domain.toml"))
            if self.manifest["job_sha256"] != job_digest(self.job, self.domain):
                raise JobError("run directory", f"job.toml or domain.toml in {self.path} was edited",
                               "the files as the run wrote them (memory and scheduler may change)",
                               "restore them, or start a new run with your job")  # fmt: skip

    @classmethod
    def create(cls, job: Job, path: str | Path | None = None, fresh: bool = False, left: Left = unmeasured,
               before: Before | None = None) -> Run:  # fmt: skip
        """Make the directory of a job (default: runs/ and the job's digest), or reopen it; `fresh`: a new one beside.

        Where none is named, the latest of a job's runs is reopened. `left`: what keeps it from a new one beside it;
        `before`: looks at what can be refused before one is made.
        """
        domain = job.read_domain()
        workload = job.build_workload(domain)
        digest = job_digest(job, domain)
        base = led_to(path if path is not None else Path("runs") / digest[:12])
        with store_errors(base), making(base):
            where, number = _place(base, digest, left if fresh else None, named=path is not None)
            if (new := not present(where / MANIFEST)) and before is not None:
                before(job, domain, workload)
            found = is_local(where) and where.is_dir()
            made = new and make(where, _first_files(job, domain, digest, number))
        run = cls(where, (job, domain)) if made else cls._reopened(where, digest, job.synthesize)
        vars(run).update(workload=workload, made=("files" if found else "folder") if made else "")
        return run

    @classmethod
    def _reopened(cls, where: Path, digest: str, rows: SynthesizeTable | None) -> Run:
        run = cls(where)
        if run.manifest["job_sha256"] != digest:
            raise JobError("run directory", f"{where} holds another job", "the directory of this job, or a new one",
                           "choose another --run-dir")  # fmt: skip
        if rows not in (None, run.synthesis):
            with run.locked():
                run.ask_rows(rows)
        return run

    @property
    def manifest(self) -> dict[str, Any]:
        """What the run is and how far it has come. A copy: `update` changes it."""
        return self._kept.read()

    def update(self, **changes: Any) -> None:
        """Change entries of the manifest."""
        self._kept.write(self.manifest | changes)

    @property
    def ended(self) -> dict[str, Any] | None:
        """How and when it was ended by `dpscale end`; None where it was not."""
        ended: dict[str, Any] | None = self.manifest.get("ended")
        return ended

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    @property
    def secret(self) -> SecretPlace:
        """Where the secret of the release is, and its public name."""
        return SecretPlace(self.secret_path, self.manifest["secret_tag"])

    @property
    def measurements_path(self) -> Path:
        return self.path / "measurements"

    @cached_property
    def workload(self) -> Workload:
        return self.job.build_workload(self.domain)

    @cached_property
    def question(self) -> Question:
        """What the job asks, at what budget."""
        return self.job.question(self.workload)

    @cached_property
    def planned(self) -> Planned:
        """What was planned, as the plan stage left it."""
        planned = self.job.method.read(self.path / "plan", self.question, self.job.options)
        if planned.noise != self.job.privacy.noise:
            raise JobError("run directory", "its plan has another noise than its job asks for",
                           "the plan as it was made", "start a new run")  # fmt: skip
        return planned

    @property
    def synthesis(self) -> SynthesizeTable | None:
        """What rows are asked for: by the job, or since the run was made; they cost nothing, so they may change."""
        since = self.manifest.get("synthesize")
        return self.job.synthesize if since is None else asked_since(self.path, since)

    def ask_rows(self, asked: SynthesizeTable) -> None:
        """Ask for other rows; those that are there are of no use then."""
        if self.synthesis != asked:
            stages = {name: entry for name, entry in self.manifest["stages"].items() if name != "synthesize"}
            self.update(synthesize=asked.model_dump(), stages=stages)

    def keep_plan(self, planned: Planned) -> None:
        """Write the plan; it need not be read again here."""
        planned.write(self.path / "plan")
        vars(self)["planned"] = planned

    @property
    def released(self) -> Released:
        """What was measured, under the manifest's release and data; JobError before the data were looked at."""
        manifest = self.manifest
        if manifest["snapshot"] is None:
            raise self._undone("measure")
        return self.releasing(manifest["release"], manifest["snapshot"])

    def releasing(self, release: str, snapshot: str) -> Released:
        """The release under its name and that of its data, opened once for each."""
        if (release, snapshot) not in self._releases:
            rows, folder = self.question.rows_per_unit, self.measurements_path
            opened = Released(folder, release, snapshot, self.planned, rows, self.held_secret)
            self._releases[release, snapshot] = opened
        return self._releases[release, snapshot]

    @cached_property
    def _releases(self) -> dict[tuple[str, str], Released]:
        return {}

    def held_secret(self) -> bytes | None:
        """The secret, if it is there and is the one that the release began with; another would draw noise afresh."""
        if not present(self.secret_path):
            return None
        secret = read_secret(self.secret_path)
        return secret if secret_tag(secret) == self.manifest["secret_tag"] else None

    def done(self, stage: str) -> bool:
        """Whether a stage is done and what it left is still there; what was removed can be made again, if at all."""
        entry = self.manifest["stages"].get(stage, {})
        return entry.get("state") == "done" and present(self.path / left_by(stage, entry)[1])

    def states(self, driven: bool = False) -> dict[str, str]:
        """The state of every stage begun: running, done, failed, cancelled, or stopped, also where its process is gone.

        `driven`: a driver elsewhere is known to be at work, which not every disk's locks tell.
        """
        states = {name: str(stage["state"]) for name, stage in self.manifest["stages"].items()}
        if "running" in states.values() and not driven and free(self.path):
            states = {name: "stopped" if state == "running" else state for name, state in states.items()}
        return states

    def require(self, stage: str) -> None:
        """JobError unless an earlier stage is done."""
        if not self.done(stage):
            self.check_open(stage)
            raise self._undone(stage)

    def check_open(self, stage: str) -> None:
        """JobError where the run was abandoned before this stage was done."""
        ended = self.ended
        if ended and ended["how"] == ABANDONED:
            got = f"{self.path} was ended on {ended['at'][:10]}, before stage {stage} was done"
            raise JobError("run directory", got, "a run that was not ended",
                           "start a new run with --fresh, which is a new release")  # fmt: skip

    def _undone(self, stage: str) -> JobError:
        return JobError("run directory", f"stage {stage} is not done", "a run whose earlier stages are done",
                        f"run `dpscale {stage} {self.path}` first")  # fmt: skip

    @contextmanager
    def during(self, stage: Stage, each: Each = plainly) -> Iterator[None]:
        """Mark a stage as running, then done with the hash that `each` makes of its files; on an error as failed, or as
        stopped."""
        self._mark(stage.name, start=now(), state="running", end=None)
        try:
            yield
        except BaseException as error:
            with suppress(OSError, DpscaleError):  # as on a full disk, which the error then tells of
                self._mark(stage.name, end=now(), state=_state_after(error))
            raise
        digest = digest_left(self.path, self.path / stage.folder, each)
        self._mark(stage.name, end=now(), state="done", sha256=digest, folder=stage.folder, leaves=stage.leaves)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; TransientError when another is at work here. The manifest is read afresh inside."""
        with locked(self.path):
            self._kept.forget()
            yield

    def _mark(self, stage: str, **changes: Any) -> None:
        manifest = self.manifest
        manifest["stages"].setdefault(stage, {}).update(changes)
        self._kept.write(manifest)
        self._log(json.dumps({"time": now(), "stage": stage, "state": changes.get("state")}) + "\n")

    def _log(self, line: str) -> None:
        path = self.path / "log.jsonl"
        if is_local(path):
            with open(path, "a") as log:
                log.write(line)
        else:  # what is in a store cannot be added to
            write_whole(path, (read_bytes(path) if present(path) else b"") + line.encode())


def job_digest(job: Job, domain: Domain) -> str:
    """What makes two runs the same job: all but where and in how much memory it runs, and the rows it ends with."""
    content = job.to_dict()
    for setting in ("scheduler", "memory"):
        content["engine"].pop(setting, None)
    content.pop("synthesize", None)
    content["reconstruct"] = SPELLED_OUT | content["reconstruct"]
    text = json.dumps([content, domain.digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _place(base: Path, digest: str, left: Left | None, named: bool) -> tuple[Path, int]:
    """Which of a job's directories, and which number it has among them; `left` where a new one is asked for."""
    if left:
        return following(base, digest, left)
    return (base, 1) if named else latest(base, digest)


def _first_files(job: Job, domain: Domain, digest: str, number: int) -> dict[str, bytes]:
    """What a run begins with, the manifest last."""
    return {
        "domain.toml": tomli_w.dumps(domain.to_dict()).encode(),
        "job.toml": tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(first_manifest(job, digest, number, domain.reviewed), indent=2).encode(),
    }


def _state_after(error: BaseException) -> str:
    """Of a stage that an error ended: who stops a run, from the keyboard or by `cancel`, has not made it fail."""
    return "stopped" if isinstance(error, KeyboardInterrupt) else str(getattr(error, "state", "failed"))


def now() -> str:
    """The time, as manifests and logs have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def origin_of(run: Run) -> Origin:
    """As its job says; a table that moves on since is read at the version that the run began with."""
    origin, begun = run.job.data.origin, run.manifest.get("table")
    return replace(origin, version=begun["version"]) if begun and origin.format else origin
