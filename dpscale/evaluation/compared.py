"""`compare`: a run's rows held against data, told in a page and a JSON file that are as private as the data.

It reads the run and never writes there, spends nothing, and tells nothing but where the page lies. What fails on the
way is told by its kind alone, as wherever records are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpscale.answers.report import render
from dpscale.base.discreet import discreetly
from dpscale.base.errors import DataError
from dpscale.engine import Engine, resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.evaluation.counting import score_all
from dpscale.evaluation.dependence import of_pairs
from dpscale.evaluation.figures import plots
from dpscale.evaluation.learning import Target, propensity, target_of, usefulness
from dpscale.evaluation.marginals import by_degree
from dpscale.evaluation.models import MOST, check_learner
from dpscale.evaluation.place import claimed, write
from dpscale.evaluation.sample import sample
from dpscale.evaluation.sets import chosen
from dpscale.evaluation.sides import Side, names_of, open_data, open_rows
from dpscale.runs.run import Run, now

PRIVATE = "Private: made from the data itself, not differentially private. Do not publish."
PAGE, FIGURES = "compare.html", "compare.json"
Told = dict[str, Any]


def compare(
    run_dir: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    target: str | None = None,
    scheduler: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Write the private report of a run's rows against data into the folder `out`; the page's path.

    `data`: a file, a folder or a glob as in a job, or a list of these. `target`: the attribute that models predict.
    JobError and DataError for what cannot be compared, before anything is counted.
    """
    check_learner()
    run = Run(run_dir)
    rows = open_rows(run)
    names = names_of(rows)
    paths = [str(one) for one in (data if isinstance(data, list | tuple) else [data])]
    records = discreetly("comparing", open_data, run, paths, names)
    predicted = target_of([run.domain[name] for name in names], target)
    with claimed(out, run.path) as folder:
        engine = resolve(scheduler=scheduler or run.job.engine.scheduler, progress=progress)
        try:
            contents = discreetly("comparing", _contents, run, engine, records, rows, predicted)
        finally:
            engine.close()
        write(folder, contents)
    return folder / PAGE


def _contents(run: Run, engine: Engine, data: Side, rows: Side, target: Target) -> dict[str, str]:
    """The files, by name."""
    sets = chosen(rows.domain, names_of(rows), run.manifest["release"])
    every = [one for degree in sets.values() for one in degree.sets]
    found = score_all(engine, data, rows, every, run.job.engine.bytes, run.manifest["release"])
    marginals = by_degree(found, sets)
    dependence = of_pairs([(one.attributes, *one.dependence) for one in found if len(one.attributes) == 2])
    told, curves = _learnt(run, engine, data, rows, target)
    for side in (data, rows):
        side.check_unchanged()
    content = {**_made(run, data, rows), "marginals": marginals, "dependence": dependence, **told}
    page = render({"c": content, "job": run.job, **plots(marginals, dependence, curves)}, "dpscale.evaluation", PAGE)
    return {PAGE: page, FIGURES: json.dumps(_finite(content), indent=1, ensure_ascii=False) + "\n"}


def _learnt(run: Run, engine: Engine, data: Side, rows: Side, target: Target) -> tuple[Told, Told]:
    """What models say of samples of both tables, and the curves of each question."""
    names = names_of(rows)
    records, drawn = (sample(engine, side, names, MOST, run.manifest["release"]) for side in (data, rows))
    if not len(records):
        raise DataError("DATA", "no record", "records", "name files that have some")
    attributes = [run.domain[name] for name in names]
    asked = {
        "propensity": propensity(attributes, records, drawn),
        "target": usefulness(attributes, target, records, drawn) if target else None,
    }
    told = {name: answer and answer.told for name, answer in asked.items()}
    curves = {answer.title: answer.curves for answer in asked.values() if answer}
    return {**told, "sampled": {"data": len(records), "rows": len(drawn)}}, curves


def _made(run: Run, data: Side, rows: Side) -> Told:
    """What was compared, and what this is."""
    return {
        "private": PRIVATE,
        "differentially_private": False,
        "made": now(),
        "release": run.manifest["release"],
        "run": str(run.path),
        "files": {side.called.lower(): list(side.table.files) for side in (data, rows)},
        "attributes": names_of(rows),
        "versions": {name: version(name) for name in ("dpscale", "scikit-learn")},
    }


def _finite(content: Any) -> Any:
    """With null for what is no number, which JSON has no word for."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
