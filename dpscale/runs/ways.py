"""The ways that a run's rows may be drawn by: made once, kept beside its estimates, opened by the tasks that draw.

model/<release>/rows.npz         the sampler's, which starts from a tree (estimates learn apart: pairwise.npz)
model/<release>/targets.npz      the estimates over three attributes that polished rows are held to
model/<release>/ancestral.npz    a junction tree's, where the estimates are of one
"""

from __future__ import annotations

from pathlib import Path

from dpscale.base.each import Each
from dpscale.job.sections import SynthesizeTable
from dpscale.reconstruction.pairwise.learn import learn
from dpscale.reconstruction.pairwise.pairs import Spread, wanted
from dpscale.reconstruction.pairwise.stored import read_learnt, write_learnt
from dpscale.runs.estimates import estimates_of, joint_of, low_order_of, model_folder
from dpscale.runs.run import Run
from dpscale.storage.files import present
from dpscale.synthesis.ancestral import ANCESTRAL, ancestral, read_ancestral, write_ancestral
from dpscale.synthesis.draw import Part
from dpscale.synthesis.polish import THREES, read_told, told, write_told
from dpscale.synthesis.quality import apart, counted
from dpscale.synthesis.sampler import Sampler, Way, sizes_of
from dpscale.synthesis.tree import tree_start

Apart = dict[str, float]
LEARNT = "rows.npz"
TASKS = 8  # that may hold all pairs at once; no number of workers, on which no byte may depend
TRIED = Part(20_000, 1, 0)
MOST_OPEN = 2
_open: dict[str, tuple[Run, Way]] = {}


def chosen_way(run: Run, asked: SynthesizeTable, each: Each) -> tuple[str, dict[str, Apart]]:
    """The way that is asked for, or the one whose rows are nearest to the estimates; how near each is."""
    ways = _kept(run, asked, each)
    if len(ways) == 1:
        return ways[0], {}
    estimated = estimates_of(run).marginal
    tried = {}
    for name in ways:
        way = read_way(model_folder(run), name)
        sizes = sizes_of(way)
        counts = counted(way.rows(TRIED, run.manifest["release"]), sizes)
        tried[name] = apart(counts, way.names, sizes, estimated)
    return min(tried, key=lambda name: sum(tried[name].values())), tried


def _kept(run: Run, asked: SynthesizeTable, each: Each) -> list[str]:
    """The ways there are, each with its file."""
    ways, folder = [], model_folder(run)
    joint = None if asked.method == "sampler" or asked.weights else joint_of(run, each)
    if joint is not None:
        write_ancestral(folder / ANCESTRAL, ancestral(joint))
        ways.append("ancestral")
    if asked.method != "ancestral":
        _learn(run, folder)
        ways.append("polished" if _polish(run, asked, folder) else "sampler")
    return ways


def _learn(run: Run, folder: Path) -> None:
    if present(folder / LEARNT):
        return
    model = low_order_of(run)
    asked = wanted(model, run.job.engine.bytes // TASKS)
    learnt = learn(asked, run.manifest["release"], start=tree_start)
    write_learnt(folder / LEARNT, learnt, Spread(model.groups, model.ones, model.rules), model.total)


def _polish(run: Run, asked: SynthesizeTable, folder: Path) -> bool:
    """Whether rows are polished; what by is made then."""
    learnt, _, total = read_learnt(folder / LEARNT)
    if not asked.polishes(total):
        return False
    if not present(folder / THREES):
        write_told(
            folder / THREES, told(learnt, low_order_of(run), run.manifest["release"], run.job.engine.bytes // TASKS)
        )
    return True


def read_way(folder: Path, name: str) -> Way:
    """What its files say."""
    if name == "ancestral":
        return read_ancestral(folder / ANCESTRAL)
    return Sampler(*read_learnt(folder / LEARNT), read_told(folder / THREES) if name == "polished" else None)


def opened_way(path: str, folder: str, name: str) -> tuple[Run, Way]:
    """What tasks draw by, kept in the process from one to the next."""
    key = f"{folder} {name}"
    if key not in _open:
        _open[key] = (Run(path), read_way(Path(folder), name))
        while len(_open) > MOST_OPEN:
            _open.pop(next(iter(_open)))
    return _open[key]
