"""Accuracy of `aim-grem` relative to commit 111f38d, with options chosen by leave-one-table-out.

For every table, options are chosen on all other tables: the setting of SETTINGS with the least geometric mean of the
error over all other tables and ε, on the choosing seeds. The error of the left-out table is then measured with that
setting on other seeds, beside the baseline. The baseline is the package of commit 111f38d, unpacked from the history of
this repository and run in its own process. Error: mean over all 3-way marginals of ‖μ̂ − μ‖₁ / N.

    python benchmarks/adaptive.py --leave-out [--seeds 5] [--epsilons 0.1 1 10] [--tables all] [--save]
"""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import adaptive
import base
from base import CONSTRUCTED, KEPT, LINKED, Table, construct_table, load_table

ROOT = Path(__file__).parents[1]
BASELINE = "111f38d"
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "grain 0.6": {"grain": 0.6},
    "penalty 0.2": {"penalty": 0.2},
    "6 rounds": {"rounds": 6},
    "pairs only": {"degree": 2},
}
ALL = (*KEPT, *LINKED, *CONSTRUCTED)
CHOOSING, DOUBT, WORST = 0, 2.0, 1.05
Key = tuple[str, float]

SCRIPT = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from fractions import Fraction
from leave_out_tables import load
from dpscale.adaptive import Options, Setting, run
from dpscale.privacy import zcdp_rho
from dpscale.privacy.streams import seeded_secret
for name, epsilon, seed in json.loads(sys.argv[3]):
    table = load(name, sys.argv[4])
    rho = Fraction(zcdp_rho(epsilon, 1e-9))
    state = run(Setting(table.sizes, table.targets, rho, options=Options()), table.counts, seeded_secret(seed))
    print(json.dumps([name, epsilon, seed, table.error(state.marginal)]), flush=True)
"""


@dataclass(frozen=True)
class LeftOut:
    """Result of one table and ε: the chosen setting, and the ratio to the baseline with its standard error."""

    setting: str
    error: float
    ratio: float
    deviation: float

    @property
    def is_worse(self) -> bool:
        return self.ratio - DOUBT * self.deviation > WORST


def load(name: str, data: Path) -> Table | None:
    return construct_table(name) if name in CONSTRUCTED else load_table(name, data)


def error_of(data: Path, setting: str, case: tuple[str, float, int]) -> float:
    """Return the error of one run with its released answers."""
    name, epsilon, seed = case
    table = load(name, data)
    assert table is not None
    with adaptive.varied(SETTINGS[setting]) as options:
        return table.error(adaptive.released_answers(table, epsilon, seed, options))


def baseline_errors(data: Path, cases: Sequence[tuple[str, float, int]]) -> dict[tuple[str, float, int], float]:
    """Return the errors of the baseline's own package. Raises SystemExit without the history of the repository."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", BASELINE, "dpscale"], capture_output=True, check=False)
    if packed.returncode:
        sys.exit(f"commit {BASELINE} is not in this repository; the baseline needs a clone with its whole history")
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(place, filter="data")
        (Path(place) / "leave_out_tables.py").write_text(
            "from pathlib import Path\nfrom base import CONSTRUCTED, construct_table, load_table\n"
            "def load(name, data):\n"
            "    return construct_table(name) if name in CONSTRUCTED else load_table(name, Path(data))\n"
        )
        command = [sys.executable, "-c", SCRIPT, place, str(ROOT / "benchmarks"), json.dumps(cases), str(data)]
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean, cwd=place)
    if done.returncode:
        sys.exit(f"the baseline failed: {done.stderr.strip().splitlines()[-1]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(name, epsilon, seed): error for name, epsilon, seed, error in rows}


def choose(errors: Mapping[str, Mapping[Key, float]], left_out: str) -> str:
    """Return the setting with the least mean log error over the other tables."""

    def mean(setting: str) -> float:
        return fmean(math.log(error) for (table, _), error in errors[setting].items() if table != left_out)

    return min(SETTINGS, key=mean)


def compared(setting: str, ours: Sequence[float], theirs: Sequence[float]) -> LeftOut:
    """Return the ratio of means; its standard error is that of a ratio of two independent means."""
    ratio = fmean(ours) / fmean(theirs)
    spread = math.hypot(*(stdev(one) / fmean(one) / math.sqrt(len(one)) for one in (ours, theirs)))
    return LeftOut(setting, fmean(ours), ratio, ratio * spread)


def run(tables: Sequence[str], epsilons: Sequence[float], seeds: range, data: Path, save: bool) -> None:
    """Choose, measure and print everything."""
    names = [name for name in (ALL if list(tables) == ["all"] else tables) if load(name, data) is not None]
    keys = list(product(names, epsilons))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        cases = [(name, epsilon, CHOOSING) for name, epsilon in keys]
        errors = {setting: dict(zip(keys, pool.map(partial(error_of, data, setting), cases), strict=True))
                  for setting in SETTINGS}  # fmt: skip
        chosen = {name: choose(errors, name) for name in names}
        for setting in SETTINGS:
            shares = [errors[setting][key] / errors["defaults"][key] for key in keys]
            mean, times = math.exp(fmean(map(math.log, shares))), list(chosen.values()).count(setting)
            print(f"{setting}: {mean:.3f} of the defaults, chosen for {times} of {len(names)} tables", flush=True)
        repeated = [(name, epsilon, seed) for name, epsilon in keys for seed in seeds]
        parts = [repeated[i :: os.cpu_count()] for i in range(os.cpu_count() or 1)]
        theirs = {
            case: error for part in pool.map(partial(baseline_errors, data), parts) for case, error in part.items()
        }
        ours = {case: pool.submit(error_of, data, chosen[case[0]], case) for case in repeated}
        found = {(name, epsilon): compared(chosen[name], [ours[name, epsilon, seed].result() for seed in seeds],
                                           [theirs[name, epsilon, seed] for seed in seeds])
                 for name, epsilon in keys}  # fmt: skip
    figures = report(found, names, epsilons)
    if save:
        base.save("leave_out", figures)


def report(found: Mapping[Key, LeftOut], names: Sequence[str], epsilons: Sequence[float]) -> dict[str, float]:
    """Print all ratios and return the figures."""
    figures: dict[str, float] = {}
    for name in names:
        cells = "  ".join(
            f"{found[name, epsilon].ratio:6.3f} ± {found[name, epsilon].deviation:.3f}" for epsilon in epsilons
        )
        print(f"{name:<14} {found[name, epsilons[0]].setting:<12} {cells}")
    for epsilon in epsilons:
        ratios = [found[name, epsilon].ratio for name in names]
        mean = math.exp(fmean(map(math.log, ratios)))
        worse = [name for name in names if found[name, epsilon].is_worse]
        print(
            f"ε = {epsilon:g}: geometric mean over {len(names)} left-out tables {mean:.3f}, largest {max(ratios):.3f}"
        )
        print(f"    above {WORST} beyond two standard errors: {', '.join(worse) or 'none'}", flush=True)
        figures |= {
            f"mean, ε = {epsilon:g}": mean,
            f"largest, ε = {epsilon:g}": max(ratios),
            f"worse, ε = {epsilon:g}": len(worse),
        }
        figures |= {f"{name}, ε = {epsilon:g}": found[name, epsilon].ratio for name in names}
        figures |= {f"{name}, ε = {epsilon:g}, standard error": found[name, epsilon].deviation for name in names}
    return figures
