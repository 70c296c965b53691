"""Usefulness of synthetic rows: models trained on them, and models that distinguish them from records; δ = 1e-9.

The job uses four fifths of Adult's records (`aim-grem` over all 3-way marginals, as many rows as records), and the
other fifth is held out, a different one for every seed. The model is gradient boosting with one fixed setting, as in
`dpscale compare`:

    trained on rows, or on the records of the job; tested on held-out records: AUC of predicting income>50K
    propensity: AUC of distinguishing rows from as many held-out records, or from the records of the job

It needs pip install 'dpscale[compare]' and a real table, which is in ../shared/data and is not part of dpscale.

    python benchmarks/usefulness.py [--epsilons 0.1 1 10] [--seeds 3] [--first-seed 100]
        --save                 save the figures in results/
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import base
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA, Table, load_table

import dpscale as dp
from dpscale.engine import LocalEngine
from dpscale.evaluation.inputs import names_of, open_data, open_rows, sample
from dpscale.evaluation.models import MOST, propensity, target_of, tstr_scores
from dpscale.runs.table import TableRun

KEPT_OUT, TARGET = 0.2, "income>50K"
SAVED = (0.1, 1.0, 10.0)


def prepare_job(table: Table, epsilon: float, seed: int, place: Path) -> dict[str, object]:
    """Return the job as a dict; its records and the held-out ones are written to files."""
    out = np.random.default_rng(seed).random(table.rows) < KEPT_OUT
    for name, which in (("job", ~out), ("out", out)):
        pq.write_table(pa.table({own: codes[which] for own, codes in table.columns.items()}), place / f"{name}.parquet")
    attributes = {name: {"kind": "coded", "size": size} for name, size in table.sizes.items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    return {
        "data": {"path": str(place / "job.parquet"), "domain": str(place / "domain.toml")},
        "privacy": {"epsilon": epsilon, "delta": 1e-9, "ledger": str(place / "ledger.sqlite"), "dataset": "adult"},
        "workload": [{"family": "marginal", "degree": 3}],
        "mechanism": {"name": "aim-grem"},
        "engine": {"scheduler": "synchronous", "seed": seed},
        "synthesize": {},
    }


def figures(table: Table, epsilon: float, seed: int, place: Path) -> dict[str, float]:
    """Return the scores of one job."""
    dp.run(prepare_job(table, epsilon, seed, place), place / "run")
    began, run, engine = time.process_time(), TableRun(place / "run"), LocalEngine("synchronous")
    rows = open_rows(run)
    names = names_of(rows)
    sides = {"rows": rows, **{name: open_data(run, [str(place / f"{name}.parquet")], names) for name in ("job", "out")}}
    codes = {name: sample(engine, side, names, MOST, run.manifest["release"]) for name, side in sides.items()}
    attributes = [run.domain[name] for name in names]
    trained = {"data": codes["job"], "rows": codes["rows"]}
    learnt = tstr_scores(attributes, target_of(attributes, TARGET), trained, codes["out"])
    scores = {name: propensity(attributes, codes[name], codes["rows"]) for name in ("out", "job")}
    assert learnt is not None
    return {
        "trained on rows": learnt.results["rows"]["auc"],
        "trained on records": learnt.results["data"]["auc"],
        "propensity, kept out": scores["out"].results["auc"],
        "propensity, the job's": scores["job"].results["auc"],
        "seconds": time.process_time() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(SAVED))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    table = load_table("adult", arguments.data)
    if table is None:
        raise SystemExit(f"no real table in {arguments.data}")
    saved: dict[str, float] = {}
    for epsilon in arguments.epsilons:
        found = []
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            with tempfile.TemporaryDirectory() as place:
                found.append(figures(table, epsilon, seed, Path(place)))
            print(f"epsilon {epsilon:g}, seed {seed}: {format_figures(found[-1])}", flush=True)
        means = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        print(f"epsilon {epsilon:g}, mean: {format_figures(means)}", flush=True)
        saved |= {f"{epsilon:g}, {name}": value for name, value in means.items() if epsilon in SAVED}
    if arguments.save:
        base.save("usefulness", {name: value for name, value in saved.items() if "seconds" not in name})


def format_figures(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


if __name__ == "__main__":
    main()
