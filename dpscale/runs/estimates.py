"""Estimates of a run by the reconstruction of its job, and samplers of synthetic rows, stored in model/<release>/."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np

from dpscale.answers.statistics import Estimate, TooFewRecords
from dpscale.answers.tables import LEVEL
from dpscale.answers.unit_counts import share_beyond
from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, ParallelMap, serial_map
from dpscale.job.sections import SynthesizeTable
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.junction_tree import GraphicalModel
from dpscale.reconstruction.model_answers import MODEL, read_model
from dpscale.reconstruction.pairwise import CellDistribution, learn, pair_targets, read_pairwise, write_pairwise
from dpscale.reconstruction.public_margins import fit_model
from dpscale.reconstruction.searched_counts import SearchedCounts, SearchedEvidence
from dpscale.runs.opening import open_part
from dpscale.runs.table import SEARCH_SHARE, TablePart
from dpscale.storage.files import listed, present
from dpscale.synthesis.ancestral import ANCESTRAL, ancestral_sampler, read_ancestral, write_ancestral
from dpscale.synthesis.draw import PairwiseSampler, RowPart, RowSampler, attribute_sizes, tree_start
from dpscale.synthesis.quality import (
    ResidualNoise,
    SetComparison,
    compare,
    compared_sets,
    mean_distances,
)
from dpscale.synthesis.set_layout import SetLayout
from dpscale.synthesis.set_targets import LAWS, THREES, read_targets, set_targets, write_targets


def estimates_of(run: TablePart) -> Estimates:
    """Return the estimates of a measured run; those of the last runs that this process opened are cached.

    The cache `_estimates` has (run, estimates) by path and key of a run, at most MOST_ESTIMATES of them, of which the
    oldest is dropped first. An entry is used for the same object `run` only.
    """
    run.require("measure")
    key = str(run.path), estimates_key(run)
    known = _estimates.get(key)
    if known is not None and known[0] is run:
        return known[1]
    found = run.job.reconstruction.estimates(evidence_of(run), run.job.estimating, model_folder(run))
    with _lock:
        _estimates[key] = run, found
        while len(_estimates) > MOST_ESTIMATES:
            _estimates.pop(next(iter(_estimates)))
    return found


def number_of_rows(estimates: Estimates) -> tuple[float, float]:
    """Return the number of counted rows with its standard error; nan if only sums of numbers were measured."""
    first = estimates.workload.domain.names[:1]
    try:
        return estimates.answer(first, np.ones(estimates.workload.domain.shape(first)))
    except PlanError:
        return np.nan, np.nan


def share_cut(run: TablePart, level: float = LEVEL) -> Estimate | None:
    """Return the share of the rows of a run that the bound of a unit cuts; None if it was not measured.

    Raises
    ------
    TooFewRecords
        If the number of rows is not distinguishable from zero.
    """
    cut = run.rows_cut  # noisy number of rows that the bound cuts
    if cut is None:
        return None
    number, error = number_of_rows(estimates_of(run))
    return None if np.isnan(number) else share_beyond(cut, (number, error), level, run.job.privacy.noise)


def counted_words(run: TablePart) -> str:
    """Return the sentence part on what is counted of a unit; empty without a unit.

    If the share of rows that the bound cuts was measured, and its estimate can be told from noise, it is appended.
    """
    try:
        share = share_cut(run)
    except TooFewRecords:  # the number of rows, which the share is divided by, may be zero
        share = None

    words = run.protects.counted
    if share is None:
        return words
    if np.isnan(share.low):  # estimates of this mechanism have no standard errors
        return f"{words}, which cuts about {share.estimate:.1%} of the rows"
    return f"{words}, which cuts about {share.estimate:.1%} of the rows ({share.low:.1%} to {share.high:.1%})"


def evidence_of(run: TablePart) -> Any:
    """Return the released measurements of a run, with the noisy counts of a search as another measurement.

    A search finds the frequent values of an attribute. Its counts are evidence if that attribute is the only set of
    the workload, which the manifest records by their share of the budget.
    """
    evidence = run.measurements.evidence()
    if SEARCH_SHARE not in run.manifest:
        return evidence

    [(name, released)] = run.searched.items()  # the only attribute that is searched
    cell_of = {str(value): cell for cell, value in enumerate(run.domain[name].values)}
    values = released["found"]
    counts = SearchedCounts(
        name=name,
        cells=np.array([cell_of[value["value"]] for value in values], np.int64),
        counts=np.array([value["count"] for value in values]),
        variance=released["error"] ** 2,
    )
    return SearchedEvidence(plan=evidence.plan, variances=evidence.variances, read=evidence.read, searched=counts)


def estimates_key(run: TablePart) -> str:
    """Return a key of everything that the estimates depend on; another run may replace one at the same path.

    The files of the model are part of it, without those of row samplers, on which estimates do not depend.
    """
    manifest = run.manifest
    files = set(listed(model_folder(run))) - {PAIRWISE_FILE, THREES, LAWS, ANCESTRAL}
    measured = manifest["stages"]["measure"].get("sha256")
    return json.dumps([manifest["release"], manifest["job_sha256"], measured, sorted(files)])


def open_estimates(path: str, key: str) -> tuple[TablePart, Estimates]:
    """Return a run and its estimates from the cache of the process, or open the run."""
    known = _estimates.get((path, key))
    if known is not None:
        return known
    run = cast(TablePart, open_part(path))
    return run, estimates_of(run)


MOST_ESTIMATES = 4  # estimates of runs that a process keeps open
_estimates: dict[tuple[str, str], tuple[TablePart, Estimates]] = {}
_lock = Lock()


def prepare_model(run: TablePart, each: ParallelMap) -> None:
    """Prepare the expensive part of the estimates once, for the tasks that use it."""
    run.require("measure")
    evidence, release = evidence_of(run), run.measurements.release
    run.job.reconstruction.prepare(evidence, run.job.estimating, model_folder(run), release, each)


def joint_distribution(run: TablePart, each: ParallelMap = serial_map) -> GraphicalModel | None:
    """Return the joint distribution of the run's estimates; None if its reconstruction has none."""
    joint = run.job.reconstruction.joint
    if joint is None:
        return None
    prepare_model(run, each)
    return joint(model_folder(run))


def graphical_model_of(run: TablePart) -> tuple[GraphicalModel, dict[str, list[object]]]:
    """Return the fitted graphical model of a run and the labels of its cells by attribute, "null" for missing values.

    Raises
    ------
    PlanError
        If the estimates are not those of a graphical model.
    """
    model = joint_distribution(run)
    if model is None:
        raise PlanError("reconstruct.method", f"{run.job.reconstruction.name} estimates of {run.path}, which are not "
                        "one distribution", "a graphical model",
                        'run a job with reconstruct.method = "graphical" or mechanism aim-pgm or mst')  # fmt: skip
    labels = {name: run.domain[name].labels for name in run.domain.names}
    return model, {name: ["null" if label is None else label for label in cells] for name, cells in labels.items()}


def low_order_tables(run: TablePart) -> LowOrder:
    """Return the low-order tables of a measured run: those of its estimates, or ones estimated for rows only.

    MODEL is the file of a model of the estimates. Without it the tables are fitted to the measurements of low order.
    """
    run.require("measure")
    path = model_folder(run) / MODEL
    if present(path):
        return read_model(path)
    return fit_model(run.domain, evidence_of(run).low_order())


def model_folder(run: TablePart) -> Path:
    """Return the model folder of a run.

    It is named by release and data, so files of another release are never read as those of this one.
    """
    manifest = run.manifest
    name = json.dumps([manifest["release"], manifest["snapshot"]])
    return run.path / "model" / hashlib.sha256(name.encode()).hexdigest()[:16]


DegreeDistances = dict[str, float]
PAIRWISE_FILE = "rows.npz"
TASKS = 8  # tasks that have all pairs in memory at once; constant, because no byte may depend on the workers
TRIAL_PART = RowPart(20_000, 1, 0)  # 20,000 rows, by which samplers are compared
MOST_OPEN = 2  # samplers that a process keeps open
_open: dict[str, tuple[TablePart, RowSampler]] = {}


def choose_sampler(
    run: TablePart, settings: SynthesizeTable, each: ParallelMap
) -> tuple[str, dict[str, DegreeDistances]]:
    """Return the name of a sampler and the distances of all samplers that were compared.

    If the settings permit several samplers, it is the one whose rows in a trial are closest to the estimates. The
    distances of a sampler are mean distances by number of attributes; a single sampler is not compared.
    """
    samplers = _write_samplers(run, settings, each)
    if len(samplers) == 1:
        return samplers[0], {}
    distances = {}
    for name in samplers:
        sampler = read_sampler(model_folder(run), name)
        layout = compared_by(run, sampler)
        counts = layout.count(sampler.rows(TRIAL_PART, run.manifest["release"]))
        distances[name] = mean_distances(compare_rows(run, sampler, layout, counts, TRIAL_PART.rows))
    return min(distances, key=lambda name: sum(distances[name].values())), distances


def compared_by(run: TablePart, sampler: RowSampler) -> SetLayout:
    """Return the attribute sets on which rows of a sampler are compared with the estimates of a run.

    They are the requested sets without attributes that the sampler does not draw, as sorted numbers of its columns.
    """
    column_of = {name: column for column, name in enumerate(sampler.names)}
    requested = []
    for names in run.workload.sets:
        requested.append(tuple(sorted(column_of[name] for name in names if name in column_of)))
    return compared_sets(requested, attribute_sizes(sampler), sampler.targeted)


def compare_rows(
    run: TablePart, sampler: RowSampler, layout: SetLayout, counts: Floats, rows: int
) -> list[SetComparison]:
    """Return the comparison of `rows` counted rows with the released estimates, in standard errors if known.

    Unbiased estimates may be negative. Where their noise is not known by set, rows are compared with the low-order
    tables from which they are drawn.
    """
    estimates = estimates_of(run)
    if not isinstance(estimates, LeastSquaresEstimates):
        return compare(layout, sampler.names, counts, rows, estimates.marginal, None, lambda names: None)

    def noise(names: Sequence[str]) -> ResidualNoise | None:
        known = estimates.residual_noise(tuple(names))
        return None if known is None else ResidualNoise(*known)

    model = low_order_tables(run).marginal
    return compare(layout, sampler.names, counts, rows, estimates.marginal, model, noise)


def _write_samplers(run: TablePart, settings: SynthesizeTable, each: ParallelMap) -> list[str]:
    """Return the names of the samplers that the settings permit; write the file of each.

    "ancestral" draws from the joint distribution of a model, if there is one; "sampler" from pairs of attributes, and
    "polished" also from larger sets. `settings.method` is "ancestral" or "sampler" to permit only that way.
    """
    samplers, folder = [], model_folder(run)
    joint = None if settings.method == "sampler" or settings.weights else joint_distribution(run, each)
    if joint is not None:
        write_ancestral(folder / ANCESTRAL, ancestral_sampler(joint))
        samplers.append("ancestral")
    if settings.method != "ancestral":
        _fit_pairwise(run, folder, each)
        samplers.append("polished" if _prepare_polishing(run, settings, folder, each) else "sampler")
    return samplers


def _fit_pairwise(run: TablePart, folder: Path, each: ParallelMap) -> None:
    """Fit the model of pairs of attributes from which rows are drawn, and write it, unless its file exists.

    The memory of a task is 1/TASKS of that of the engine. The release seeds the random choices; `each` maps a function
    over items, perhaps in parallel.
    """
    if present(folder / PAIRWISE_FILE):
        return
    model = low_order_tables(run)
    targets = pair_targets(model, run.job.engine.bytes // TASKS)
    pairwise = learn(targets, run.manifest["release"], start=tree_start, each=each)
    cells = CellDistribution(model.groups, model.ones, model.rules)
    write_pairwise(folder / PAIRWISE_FILE, pairwise, cells, model.total)


def _prepare_polishing(run: TablePart, settings: SynthesizeTable, folder: Path, each: ParallelMap) -> bool:
    """Return whether rows are polished; write their targets over larger sets than pairs if they are missing.

    THREES has targets for polished rows, LAWS for others; `settings.polishes` decides by the number of rows.
    """
    pairwise, _, total = read_pairwise(folder / PAIRWISE_FILE)
    polished = settings.polishes(total)
    path = folder / (THREES if polished else LAWS)
    if not present(path):
        memory, release = run.job.engine.bytes // TASKS, run.manifest["release"]
        write_targets(path, set_targets(pairwise, low_order_tables(run), release, memory, total, polished, each))
    return polished


def read_sampler(folder: Path, name: str) -> RowSampler:
    """Return the sampler stored in a folder.

    THREES has targets for polished rows, LAWS for others. `name` is "ancestral", "polished" or another method of
    drawing from pairs.
    """
    if name == "ancestral":
        return read_ancestral(folder / ANCESTRAL)
    targets = read_targets(folder / (THREES if name == "polished" else LAWS))  # over larger sets than pairs
    plain = targets.is_empty and name != "polished"  # rows of two attributes are polished without larger sets
    return PairwiseSampler(*read_pairwise(folder / PAIRWISE_FILE), None if plain else targets)


def open_sampler(path: str, folder: str, name: str) -> tuple[TablePart, RowSampler]:
    """Return the run and its sampler; they are cached in the process for later tasks."""
    key = f"{folder} {name}"
    if key not in _open:
        _open[key] = (cast(TablePart, open_part(path)), read_sampler(Path(folder), name))
        while len(_open) > MOST_OPEN:
            _open.pop(next(iter(_open)))
    return _open[key]
