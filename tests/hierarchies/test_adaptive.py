"""Adaptive selection of tables at any level of a hierarchy, and rows of plans over hierarchies."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.mechanisms import mechanism
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.privacy.accounting import Budget
from dpscale.workload import Workload
from tests.hierarchies.small import check_evidence, domain_of

SIZES = {"place": (3, 7, 20)}


def adaptive(**options):
    workload = Workload(domain_of(SIZES, age=4, sex=2)).add("marginal", attributes=[["place", "age", "sex"]])
    named = mechanism("aim-grem")
    return named.plan(PlanningProblem(workload, Budget("gaussian", 0.5)), named.Options(**options), Tools())


def test_candidates_have_every_level_and_one_level_each():
    pairs = [names for names in adaptive().candidates if len(names) == 2]
    assert {("country", "age"), ("region", "age"), ("place", "age")} <= {tuple(sorted(p, reverse=True)) for p in pairs}
    levels = {"country", "region", "place"}
    assert all(len(levels.intersection(names)) <= 1 for names in adaptive().candidates)


def test_published_mechanism_has_only_the_levels_of_the_workload():
    assert {name for names in adaptive(published=True).candidates for name in names} == {"place", "age", "sex"}


def test_plan_of_an_older_version_keeps_its_candidates(tmp_path, monkeypatch):
    named = mechanism("aim-grem")
    with monkeypatch.context() as patch:
        patch.setattr("dpscale.mechanisms.aim.adaptive_plan._levels_above", lambda domain: {})
        older = adaptive()
    older.write(tmp_path)
    assert "coarser" not in json.loads((tmp_path / "plan.json").read_text())
    again = named.read(tmp_path, PlanningProblem(older.workload, Budget("gaussian", 0.5)), named.Options())
    assert again.candidates == older.candidates != adaptive().candidates
    assert [one.label for one in again.first_decision().requests] == [
        one.label for one in older.first_decision().requests
    ]


def write_job(folder, mechanism, **tables):
    rng = np.random.default_rng(3)
    domain = domain_of(SIZES, age=4)
    place = rng.integers(0, 20, 4000)
    frame = pd.DataFrame({"place": [f"place {i}" for i in place], "age": (place + rng.integers(0, 2, 4000)) % 4})
    frame.to_parquet(folder / "data.parquet")
    (folder / "domain.toml").write_text(tomli_w.dumps(domain.to_dict()))
    job = {"data": {"path": str(folder / "data.parquet"), "domain": str(folder / "domain.toml")},
           "privacy": {"epsilon": 2.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite")},
           "mechanism": {"name": mechanism}, "engine": {"scheduler": "synchronous", "seed": 1}, **tables}  # fmt: skip
    return dp.run(job, run_dir=folder / "run"), domain


@pytest.mark.parametrize("name", ["aim-grem", "weighted-residuals"])
def test_rows_lie_in_the_tree_and_are_near_the_estimates(tmp_path, name):
    levels = [["place", "age"]] if name == "aim-grem" else [["country", "age"], ["region"], ["place", "age"]]
    workload = [{"family": "marginal", "attributes": levels}]
    release, domain = write_job(tmp_path, name, workload=workload, synthesize={"rows": 3000})
    rows = release.synthetic().compute()
    own = domain.hierarchies[0]
    for level in own.names[:-1]:
        if level in rows:
            of = dict(zip(domain["place"].labels, own.ancestors(level), strict=True))
            labels = list(domain[level].labels)
            assert (rows[level].astype(str) == [labels[of[place]] for place in rows["place"].astype(str)]).all()
    shares = rows["place"].value_counts().reindex(domain["place"].labels, fill_value=0) / len(rows)
    estimate = np.maximum(release.marginal(("place",)), 0)
    assert np.abs(shares.to_numpy() - estimate / estimate.sum()).sum() / 2 < 0.1
    check_evidence(tmp_path / "run")
