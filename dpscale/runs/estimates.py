"""The estimates of a run, by the reconstruction that its job asks for, and the folder of what that keeps.

model/<release>/…
"""

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
    """The estimates that a measured run gives."""
    run.require("measure")
    return run.job.reconstruction.estimates(run.released.evidence(), run.job.estimating, model_folder(run))


def keep_model(run: Run, each: Each) -> None:
    """Make what is dear once, for the tasks that answer from it."""
    run.require("measure")
    released = run.released
    run.job.reconstruction.prepare(released.evidence(), run.job.estimating, model_folder(run), released.release, each)


def joint_of(run: Run, each: Each) -> GraphicalModel | None:
    """The distribution that the run's estimates are marginals of, where its reconstruction has one."""
    joint = run.job.reconstruction.joint
    if joint is None:
        return None
    keep_model(run, each)
    return joint(model_folder(run))


def low_order_of(run: Run) -> LowOrder:
    """Low-order tables of a measured run: those of its estimates, where it has such, or made for rows alone."""
    run.require("measure")
    kept = model_folder(run) / MODEL
    return read_model(kept) if present(kept) else run.released.evidence().low_order()


def model_folder(run: Run) -> Path:
    """Named by the release and its data: what another release left in the directory is not read as this one's."""
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
    """The way that is asked for, or the one whose rows are nearest to the estimates; how near each is."""
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
    """The ways there are, each with its file."""
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
    """Whether rows are polished; what by is made then."""
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
    """What its files say."""
    if name == "ancestral":
        return read_ancestral(folder / ANCESTRAL)
    return PairwiseSampler(
        *read_pairwise(folder / LEARNT), read_targets(folder / THREES) if name == "polished" else None
    )


def opened_way(path: str, folder: str, name: str) -> tuple[Run, RowSampler]:
    """What tasks draw by, kept in the process from one to the next."""
    key = f"{folder} {name}"
    if key not in _open:
        _open[key] = (Run(path), read_way(Path(folder), name))
        while len(_open) > MOST_OPEN:
            _open.pop(next(iter(_open)))
    return _open[key]
