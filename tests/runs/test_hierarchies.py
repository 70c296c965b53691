"""Domains with functional dependencies and structural zeros: `aim-grem` does not measure implied sets, and estimates
satisfy the rules.
"""

import json
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.domain.rules import FunctionalDependency, possible
from dpscale.mechanisms.aim_grem import Options, plan
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from tests.selection import mostly_slow

TOWNS = [f"t{i:02d}" for i in range(12)]
GROUPS = {"north": TOWNS[:3], "west": TOWNS[3:8], "south": TOWNS[8:]}
DOMAIN = {
    "attributes": {
        "town": {"kind": "categories", "values": TOWNS, "nulls": "category", "parent": {"region": GROUPS}},
        "age": {"kind": "integer", "low": 0, "high": 9},
        "married": {"kind": "boolean"},
        "work": {"kind": "coded", "size": 4},
    },
    "rule": [{"rule": "if age <= 1 then married = false"}],
}
WORKLOAD = [{"family": "marginal", "degree": 3}]


@pytest.fixture(scope="module")
def people():
    rng, rows = np.random.default_rng(0), 4000
    town = rng.choice(12, rows, p=np.arange(1, 13) / 78)
    region = np.digitize(town, [3, 8])
    age = np.minimum(rng.poisson(2 + 2 * region), 9)
    married = (age > 1) & (rng.random(rows) < 0.6)
    work = (rng.random(rows)[:, None] > np.cumsum(rng.dirichlet(np.ones(4), 12), axis=1)[town]).sum(axis=1).clip(0, 3)
    names = np.where(rng.random(rows) < 0.05, None, np.array(TOWNS, object)[town])
    return pd.DataFrame({"town": names, "age": age, "married": married, "work": work})


def run_job(people, place, mechanism, workload=WORKLOAD, **reconstruct):
    people.to_parquet(place / "people.parquet", index=False)
    (place / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    job = {"data": {"path": str(place / "people.parquet"), "domain": str(place / "domain.toml")},
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "people", "ledger": str(place / "l.sqlite")},
           "workload": workload, "mechanism": {"name": mechanism}, "engine": {"seed": 1},
           "reconstruct": {"method": "maxent"} | reconstruct}  # fmt: skip
    return dp.run(job, place / "run")


KINDS = [
    ("aim-grem", {}),
    ("aim-grem", {"errors": "simulated"}),
    ("residual-planner", {}),
    ("aim-grem", {"agree": True}),
]


@pytest.mark.parametrize("kind", mostly_slow(KINDS, KINDS[2:]))
def test_structural_zeros_and_dependencies_hold_in_estimates(people, tmp_path, kind):
    mechanism, reconstruct = kind
    release = run_job(people, tmp_path, mechanism, **reconstruct)
    domain = dp.Domain.from_dict(DOMAIN)
    for names in combinations(domain.names, 3):
        cells = release.marginal(names)
        assert cells[~possible(domain.rules, names, cells.shape)].sum() < 1e-6  # agreed sets: what is left of nothing
        assert cells.sum() > 3000
    town, region = release.marginal(("town",)), release.marginal(("region",))
    [follows] = [rule for rule in domain.rules if isinstance(rule, FunctionalDependency)]
    assert np.bincount(follows.of, town) == pytest.approx(region, rel=1e-6)
    if mechanism == "aim-grem":
        decided = [json.loads(path.read_text()) for path in (tmp_path / "run/measurements").glob("*.json")]
        chosen = [set(names) for one in decided for names in one.get("chosen", ()) if len(names) > 1]
        assert chosen
        assert {"town", "region"} not in chosen


def test_dependent_pairs_are_no_candidates():
    domain = dp.Domain.from_dict(DOMAIN)
    problem = PlanningProblem(dp.Workload(domain).add("marginal", degree=3), Budget(GAUSSIAN, 1.0))
    candidates = plan(problem, Options()).setting.candidates
    assert ("town", "age") in candidates
    assert ("town", "region") not in candidates
    assert ("town", "region") in plan(problem, Options(published=True)).setting.candidates  # as in the paper


def test_workload_of_dependent_pair_uses_1_way_marginals(people, tmp_path):
    release = run_job(people, tmp_path, "aim-grem", [{"family": "marginal", "attributes": [["town", "region"]]}])
    cells = release.marginal(("town", "region"))
    assert not cells[~possible(dp.Domain.from_dict(DOMAIN).rules, ("town", "region"), cells.shape)].any()
    assert cells.sum(axis=1) == pytest.approx(people.town.value_counts(dropna=False).sort_index().to_numpy(), abs=60)


def test_chain_of_dependencies_needs_no_selection(people, tmp_path):
    """A town determines its region and the coast of the region: no pair or triple is left to select."""
    domain = DOMAIN["attributes"] | {"town": DOMAIN["attributes"]["town"] | {"parent": {"region": GROUPS, "coast": {
        "sea": TOWNS[:6], "land": TOWNS[6:]}}}}  # fmt: skip
    people.to_parquet(tmp_path / "people.parquet", index=False)
    (tmp_path / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    job = {"data": {"path": str(tmp_path / "people.parquet"), "domain": str(tmp_path / "domain.toml")},
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "p", "ledger": str(tmp_path / "l.sqlite")},
           "workload": [{"family": "marginal", "attributes": [["town", "region", "coast"]]}],
           "mechanism": {"name": "aim-grem"}}  # fmt: skip
    cells = dp.run(job, tmp_path / "run").marginal(("town", "region", "coast"))
    assert (cells > 0).sum(axis=(1, 2)).tolist() == [1] * 12 + [1]


def test_rules_of_a_job_are_those_of_its_domain(people, tmp_path):
    people.to_parquet(tmp_path / "people.parquet", index=False)
    (tmp_path / "domain.toml").write_text(tomli_w.dumps({"attributes": DOMAIN["attributes"]}))
    job = {"data": {"path": str(tmp_path / "people.parquet"), "domain": str(tmp_path / "domain.toml")},
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "p", "ledger": str(tmp_path / "l.sqlite")},
           "workload": [{"family": "marginal", "attributes": [["age", "married"]]}],
           "mechanism": {"name": "aim-grem"}, "rule": DOMAIN["rule"]}  # fmt: skip
    release = dp.run(job, tmp_path / "run")
    cells = release.marginal(("age", "married"))
    assert not cells[:2, 1].any()
    assert cells[:2, 0].any()
    assert dp.Domain.read(tmp_path / "run/domain.toml") == dp.Domain.from_dict(DOMAIN)
