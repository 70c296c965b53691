"""Start of a run that refines a measured one: more budget on the same records, as a new release with its own charge."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from dpscale.base.display import format_bytes
from dpscale.base.errors import DataError, JobError, PlanError
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.data import place_entries
from dpscale.job.job import DIGEST_VERSION, job_digest
from dpscale.mechanisms.contract import Instalments, Pooling
from dpscale.plans.measurement_plan import MeasurementPlan, as_requests
from dpscale.privacy.accounting import LAPLACE
from dpscale.records.frames import FRAME
from dpscale.runs.charge import check_ledger_exists
from dpscale.runs.earlier import (
    EARLIER,
    check_layout,
    hashes_of,
    other_data,
    refined_digest,
    required_pooling,
)
from dpscale.runs.manifest import MANIFEST, first_manifest, resolve_path
from dpscale.runs.opening import create_directory, creation_errors, open_part, open_run, read_job
from dpscale.runs.preflight import check_preflight
from dpscale.runs.run import Part, Run
from dpscale.runs.source import columns_of
from dpscale.runs.stages.plan import make_plan
from dpscale.runs.table import SEARCH_SHARE, TablePart, job_entries
from dpscale.storage.files import present, store_errors, write_whole
from dpscale.workload import Workload

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

SUFFIX, COPIES = "-refined", 4  # COPIES of all values in memory while a run is created


@dataclass(frozen=True, eq=False)
class Refinement:
    """A measured run, the job that refines it, and its domain and workload.

    Attributes
    ----------
    first : TablePart
    job : Job
    domain : Domain
    workload : Workload
    completes : bool
        Whether some of the releases have different workloads.
    has_job : bool
        Whether the job is another one than that of the run.
    """

    first: TablePart
    job: Job
    domain: Domain
    workload: Workload
    completes: bool
    has_job: bool

    @property
    def releases(self) -> list[dict[str, Any]]:
        """Identity and cost of every earlier release, the oldest first."""
        earlier = (self.first.manifest.get("refines") or {"releases": []})["releases"]
        return [*earlier, _instalment_of(self.first)]

    @property
    def costs(self) -> Instalments:
        """Costs of the earlier releases."""
        return Instalments.of(self.releases, self.job.privacy.delta)

    @property
    def pooling(self) -> Pooling:
        return required_pooling(self.first.job.method)

    def pack(self) -> dict[str, bytes]:
        """Return files of the values of the earlier releases; raise PlanError if they exceed the memory setting.

        Without a job of its own, the refinement has the workload of the first release, whose plan is read from there.
        """
        values = int(as_requests(self.first.measurement_plan.first_decision().requests).sizes.sum())
        needed = COPIES * 8 * values  # bytes
        if needed > self.job.engine.bytes:
            where = "the job" if self.has_job else f"{self.first.path / 'job.toml'}, where it may change"
            raise PlanError("engine.memory", f"{values:,} earlier values, whose copies need {format_bytes(needed)}",
                            f"at most the {format_bytes(self.job.engine.bytes)} of engine.memory",
                            f"raise it in {where}")  # fmt: skip
        plan = None if self.has_job else self.first.path / "plan"
        return self.pooling.pack(self.first.measurements.evidence(), self.workload, self.costs, plan)

    @property
    def default_directory(self) -> Path:
        """Directory next to that of the first release: its name with -refined, -refined-2 and so on."""
        path = self.first.path
        numbered = re.fullmatch(rf"(.*{SUFFIX})(?:-([0-9]+))?", path.name)
        if numbered is None or not self.first.manifest.get("refines"):
            return path.with_name(path.name + SUFFIX)
        return path.with_name(f"{numbered[1]}-{int(numbered[2] or 1) + 1}")


def _instalment_of(run: TablePart) -> dict[str, Any]:
    """Return the identity and the cost of a measured release, as an entry of `Refinement.releases`.

    `cost` is that of all draws of the run, `measured` that of the measurements alone, without searches.
    """
    privacy, manifest = run.job.privacy, run.manifest
    return {"release": manifest["release"], "secret_tag": manifest.get("secret_tag"), "cost": run.spent.to_dict(),
            "measured": run.measurements.spent.to_dict(), "epsilon": privacy.epsilon,
            "delta": privacy.delta}  # fmt: skip


def plan_refinement(
    run_dir: str | Path,
    epsilon: float | None,
    delta: float | None = None,
    job: str | Path | Mapping[str, Any] | None = None,
    privacy_cost: float | None = None,
) -> Refinement:
    """Return a refinement of a measured run; nothing is written.

    Parameters
    ----------
    run_dir : str or Path
        Directory of the measured run.
    epsilon, delta : float
        Budget of the new release; by default the delta of the job.
    job : str, Path or mapping, optional
        Job with another workload.
    privacy_cost : float, optional
        Squared μ of the new release, instead of epsilon and delta.

    Raises
    ------
    JobError
        If the run cannot be refined, or the job has other data than the run.
    """
    first = check_refinable(open_part(run_dir))
    of_frame = {"path": FRAME} if first.job.data.path == FRAME else {}
    requested = first.run.job if job is None else _check_job(read_job(job, of_frame), first)
    refined, domain = _with_budget(requested, first, epsilon, delta, privacy_cost), first.domain
    # a run that refines other releases may already have another workload than they
    completes = job is not None or (first.refines or {"completes": False})["completes"]
    return Refinement(
        first=first,
        job=refined,
        domain=domain,
        workload=refined.table.build_workload(domain),
        completes=completes,
        has_job=job is not None,
    )


def check_refinable(run: Run | Part) -> TablePart:
    """Return a run of one table that is measured; raise JobError for any other run."""
    if (run.run if isinstance(run, Part) else run).content.periods:
        raise _refused(run, "the run of a growing table", "its horizon was charged as a whole")
    if isinstance(run, Part) and run.folder:
        raise _refused(run, "one of several tables, which are charged together", "refine is for one table")
    if not isinstance(run, TablePart):
        raise _refused(run, "the run of several tables", "refine is for one table")
    run.require("measure")
    if run.unit_counts is not None:
        raise _refused(run, 'a run with count = "units"', "numbers of units are not pooled")
    if not required_pooling(run.job.method).accepts(run.measurement_plan):
        raise _refused(run, f"a run of {run.job.method.name} with these options", "its releases are not pooled")
    return run


def _refused(run: Run | Part, what: str, why: str) -> JobError:
    return JobError("run directory", f"{run.path} is {what}",
                    "the measured run of one table, with a fixed plan or by aim-grem as it is by default",
                    f"start a new run: {why}")  # fmt: skip


def _check_job(job: Job, first: TablePart) -> Job:
    """Return a job with another workload; raise JobError unless its data, domain and ledger are those of the run."""
    if not job.is_short:
        raise JobError("--job", "a job of several tables", "a job of one table", "use the job with another workload")
    if not required_pooling(first.job.method).other_workloads:
        raise JobError("--job", f"given for a run of {first.measurement_plan.mechanism}", "a run with a fixed plan",
                       "leave it out: an adaptive release continues with its own workload")  # fmt: skip
    if job.table.method.pooling != first.job.method.pooling:
        raise JobError("mechanism.name", f"{job.table.method.name} for a run of {first.job.method.name}",
                       "a mechanism with a fixed plan",
                       "use weighted-residuals, or refine without --job")  # fmt: skip

    # numbers of which sums of squares are measured
    new, old = ({number.name for number in domain.numbers if number.squares}
                for domain in (job.table.read_domain(), first.declared))  # fmt: skip
    names = sorted(new ^ old)
    if names:
        where = "the new workload alone" if names[0] in new else "the run that is refined alone"
        raise JobError("workload", f"a variance of {', '.join(names)} in {where}", "variances of the same numbers in"
                       " both", "ask for it in the first run and in this one, or start a new run")  # fmt: skip

    # the first setting that differs; the domain is compared by its content, not by its path
    theirs, ours = (each.to_dict()["data"] | {"domain": ""} for each in (first.run.job, job))
    differing = next((f"data.{name}" for name in theirs | ours if ours.get(name) != theirs.get(name)), "")
    # as declared, or with the cells that its searches found
    if not differing and job.table.read_domain().digest not in (first.declared.digest, first.domain.digest):
        differing = "data.domain"
    for name in ("ledger", "dataset"):
        if not differing and getattr(job.privacy, name) != getattr(first.job.privacy, name):
            differing = f"privacy.{name}"
    if differing:
        raise JobError(differing, f"another value than in {first.path / 'job.toml'}", "that of the run that is refined",
                       "copy it from there: only the workload and the mechanism may differ")  # fmt: skip
    return job


def _with_budget(
    job: Job, first: TablePart, epsilon: float | None, delta: float | None, privacy_cost: float | None
) -> Job:
    """Return a job with the budget of the new release and the data of the first one.

    Without `delta` the budget keeps the δ of the first release, unless it is a privacy cost, which has none. The shares
    of searches are removed, because their cells are found already.
    """
    content = job.to_dict()  # with absolute paths
    if SEARCH_SHARE in first.manifest:
        raise JobError("run directory", f"{first.path}, whose counts are those of a search", "a run whose counts are"
                       " measured after the search", "start a new run with the whole budget")  # fmt: skip
    content["budget"] = {name: share for name, share in content.get("budget", {}).items() if "discover" not in name}
    noise = first.job.privacy.noise
    delta = first.job.privacy.delta if delta is None and privacy_cost is None else delta
    if delta is None and privacy_cost is None and noise != LAPLACE:
        raise JobError("--delta", "missing, and the job of the run states none", "the delta of epsilon",
                       "add --delta, for example 1e-9")  # fmt: skip

    budget = {"epsilon": epsilon, "delta": delta, "privacy_cost": privacy_cost}
    stated = {name: value for name, value in budget.items() if value is not None}
    former_budget = ("epsilon", "rho", "renyi", "privacy_cost", "delta")
    others = {name: value for name, value in content["privacy"].items() if name not in former_budget}
    content["privacy"] = others | stated
    renewed = Job.parse(content, first.path).at(job.folder, job.places)
    if renewed.privacy.noise != noise:
        raise JobError("--delta", f"given for a run with {noise} noise",
                       "epsilon alone for pure differential privacy", "leave it out")  # fmt: skip
    return renewed


def preview_refinement(planned: Refinement, engine: Engine) -> MeasurementPlan:
    """Return the plan of a refinement that is not started; nothing is charged, and no record is read."""
    problem = planned.job.table.planning_problem(planned.workload)
    with tempfile.TemporaryDirectory() as name:
        for file, content in planned.pack().items():
            write_whole(Path(name) / file, content)
        return planned.pooling.plan(Path(name), problem, planned.costs, planned.completes,
                                    lambda: make_plan(planned.job.table, problem, engine))  # fmt: skip


def missing_cost(planned: Refinement, engine: Engine) -> float:
    """Return the squared μ of what the earlier releases lack of one release of the job at its whole budget.

    It is 0 if they answer the workload at least as exactly. Nothing is charged, and no record is read.

    Raises
    ------
    PlanError
        If the plans cannot be pooled.
    """
    problem, missing = planned.job.table.planning_problem(planned.workload), planned.pooling.missing
    assert missing is not None, "only fixed plans have other workloads"
    plan = make_plan(planned.job.table, problem, engine)
    return missing(plan.evidence_plan, problem, planned.first.measurements.evidence())


def start_refinement(planned: Refinement, run_dir: str | Path | None = None, frame: object = None) -> Run:
    """Create the directory of a refinement, or reopen it if it was started.

    Parameters
    ----------
    planned : Refinement
    run_dir : str or Path, optional
        By default the directory next to the first one with the ending -refined.
    frame : data frame, optional
        The data of a run that read a frame.

    Raises
    ------
    JobError
        If the directory belongs to another run.
    DataError
        If the data differ from those of the first release.
    """
    where = resolve_path(run_dir if run_dir is not None else planned.default_directory)
    first, job = planned.first, planned.job
    if job.table.data.path == FRAME and frame is None:
        raise DataError("data", "none, but the run read a data frame", "the same frame", "pass it: data=frame")
    with store_errors(where), creation_errors(where):
        created = False
        if not present(where / MANIFEST):
            check_layout(first)
            check_ledger_exists(first.run)
            if frame is not None and not first.manifest.get("frame"):
                raise other_data("a frame that cannot be compared, because the run has no fingerprint of it")
            check_preflight(job.table, planned.domain, planned.workload)
            created = create_directory(where, _first_files(planned, where))
    run = open_run(where)
    # an existing directory must refine the same releases with the same job
    refines, version = run.manifest.get("refines"), run.manifest.get("job_version", 1)
    digest = job_digest(job, planned.domain, version)
    same = refines is not None and refines["releases"] == planned.releases
    if not same or run.manifest["job_sha256"] != refined_digest(digest, refines):
        raise JobError("run directory", f"{where} contains another run",
                       "the directory of this refinement, or a new one", "choose another --run-dir")  # fmt: skip
    run.created = "folder" if created else ""
    run.table.frame = frame
    return run


def _first_files(planned: Refinement, where: Path) -> dict[str, bytes]:
    """Return the initial files of a refinement by name, the manifest last.

    The entry `refines` of the manifest identifies the releases whose values are pooled, and the data that they read.
    Their values are copied so that the run does not depend on their folder.
    """
    first, job, before = planned.first, planned.job, planned.first.manifest  # `before` is the manifest of the first run
    files = {f"{EARLIER}/{name}": content for name, content in planned.pack().items()}
    refines = {
        "path": str(first.path),
        "completes": planned.completes,
        "releases": planned.releases,
        "files": hashes_of(files),
        "content": before.get("frame") or before.get("content"),
    }
    if "frame" in before:  # the hash of a frame is over these columns
        measured = before.get("hashed") or columns_of(first.domain, first.measurement_plan.counted_sets)
        refines["names"] = sorted({*measured, *(first.refines or {}).get("names", ())})

    # the release id of a job with a seed follows from its digest by the first rule, so that it stays the same
    digest, earlier = (refined_digest(job_digest(job, planned.domain, version), refines)
                       for version in (DIGEST_VERSION, 1))  # fmt: skip
    # the ledger that has the entries of the earlier releases, and their cap
    taken = {name: before[name] for name in ("data", "table", "ledger") if name in before}
    entries = job_entries(job.table, planned.domain) | {"job_version": DIGEST_VERSION, "job_sha256": digest}
    entries |= place_entries(job.folder, job.places, where)
    manifest = first_manifest(job.engine.seed, earlier, 1, **entries, **taken, refines=refines)
    return {**planned.domain.to_files(), **files, "job.toml": tomli_w.dumps(job.to_dict()).encode(),
            MANIFEST: json.dumps(manifest, indent=2).encode()}  # fmt: skip
