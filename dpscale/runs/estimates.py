"""Estimates of a run by the reconstruction of its job, and samplers of synthetic rows, stored in model/<release>/."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dpscale.base.parallel import Each
from dpscale.job.sections import SynthesizeTable
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.junction_tree.model import GraphicalModel
from dpscale.reconstruction.model_answers import MODEL, read_model
from dpscale.reconstruction.pairwise.learn import learn, read_pairwise, write_pairwise
from dpscale.reconstruction.pairwise.pairs import CellDistribution, pair_targets
from dpscale.runs.run import Run
from dpscale.storage.files import present
from dpscale.synthesis.ancestral import ANCESTRAL, ancestral_sampler, read_ancestral, write_ancestral
from dpscale.synthesis.draw import PairwiseSampler, RowPart, RowSampler, attribute_sizes
from dpscale.synthesis.quality import count_sampled_sets, distances_by_degree
from dpscale.synthesis.three_way import THREES, read_targets, three_way_targets, write_targets
from dpscale.synthesis.tree import tree_start


def estimates_of(run: Run) -> Estimates:
    """Return the estimates of a measured run."""
    run.require("measure")
    return run.job.reconstruction.estimates(run.released.evidence(), run.job.estimating, model_folder(run))


def keep_model(run: Run, each: Each) -> None:
    """Prepare the expensive part of the estimates once, for the tasks that use it."""
    run.require("measure")
    released = run.released
    run.job.reconstruction.prepare(released.evidence(), run.job.estimating, model_folder(run), released.release, each)


def joint_of(run: Run, each: Each) -> GraphicalModel | None:
    """Return the joint distribution of the run's estimates; None if its reconstruction has none."""
    joint = run.job.reconstruction.joint
    if joint is None:
        return None
    keep_model(run, each)
    return joint(model_folder(run))


def low_order_of(run: Run) -> LowOrder:
    """Return the low-order tables of a measured run: those of its estimates, or ones estimated for rows only."""
    run.require("measure")
    kept = model_folder(run) / MODEL
    return read_model(kept) if present(kept) else run.released.evidence().low_order()


def model_folder(run: Run) -> Path:
    """Return the model folder of a run.

    It is named by release and data, so files of another release are never read as those of this one.
    """
    manifest = run.manifest
    name = json.dumps([manifest["release"], manifest["snapshot"]])
    return run.path / "model" / hashlib.sha256(name.encode()).hexdigest()[:16]


Apart = dict[str, float]
LEARNT = "rows.npz"
TASKS = 8  # that may hold all pairs at once; no number of workers, on which no byte may depend
TRIED = RowPart(20_000, 1, 0)
MOST_OPEN = 2
_open: dict[str, tuple[Run, RowSampler]] = {}


def chosen_way(run: Run, asked: SynthesizeTable, each: Each) -> tuple[str, dict[str, Apart]]:
    """Return the name of a sampler and the distances of all samplers that were compared.

    It is the requested sampler, or the one whose rows are closest to the estimates.
    """
    ways = _kept(run, asked, each)
    if len(ways) == 1:
        return ways[0], {}
    estimated = estimates_of(run).marginal
    tried = {}
    for name in ways:
        way = read_way(model_folder(run), name)
        sizes = attribute_sizes(way)
        counts = count_sampled_sets(way.rows(TRIED, run.manifest["release"]), sizes)
        tried[name] = distances_by_degree(counts, way.names, sizes, estimated)
    return min(tried, key=lambda name: sum(tried[name].values())), tried


def _kept(run: Run, asked: SynthesizeTable, each: Each) -> list[str]:
    """Return the names of the available samplers; write the file of each."""
    ways, folder = [], model_folder(run)
    joint = None if asked.method == "sampler" or asked.weights else joint_of(run, each)
    if joint is not None:
        write_ancestral(folder / ANCESTRAL, ancestral_sampler(joint))
        ways.append("ancestral")
    if asked.method != "ancestral":
        _learn(run, folder)
        ways.append("polished" if _polish(run, asked, folder) else "sampler")
    return ways


def _learn(run: Run, folder: Path) -> None:
    if present(folder / LEARNT):
        return
    model = low_order_of(run)
    asked = pair_targets(model, run.job.engine.bytes // TASKS)
    learnt = learn(asked, run.manifest["release"], start=tree_start)
    write_pairwise(folder / LEARNT, learnt, CellDistribution(model.groups, model.ones, model.rules), model.total)


def _polish(run: Run, asked: SynthesizeTable, folder: Path) -> bool:
    """Return whether rows are polished; write the targets of polishing if they are missing."""
    learnt, _, total = read_pairwise(folder / LEARNT)
    if not asked.polishes(total):
        return False
    if not present(folder / THREES):
        write_targets(
            folder / THREES,
            three_way_targets(learnt, low_order_of(run), run.manifest["release"], run.job.engine.bytes // TASKS),
        )
    return True


def read_way(folder: Path, name: str) -> RowSampler:
    """Return the sampler stored in a folder."""
    if name == "ancestral":
        return read_ancestral(folder / ANCESTRAL)
    return PairwiseSampler(
        *read_pairwise(folder / LEARNT), read_targets(folder / THREES) if name == "polished" else None
    )


def opened_way(path: str, folder: str, name: str) -> tuple[Run, RowSampler]:
    """Return the run and its sampler; they are cached in the process for later tasks."""
    key = f"{folder} {name}"
    if key not in _open:
        _open[key] = (Run(path), read_way(Path(folder), name))
        while len(_open) > MOST_OPEN:
            _open.pop(next(iter(_open)))
    return _open[key]
