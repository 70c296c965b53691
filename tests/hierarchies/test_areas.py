"""Areas of a release: estimates and errors against single queries, coverage, labels, and refusals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.base.errors import JobError, PlanError
from dpscale.reconstruction.tree_estimates import TreeEstimates
from tests.hierarchies.small import dense, domain_of, planned
from tests.messages import refused

TREE = pd.DataFrame({
    "country": ["AT", "AT", "AT", "AT", "DE", "DE", "DE", "LU"],
    "region": ["Tirol", "Tirol", "Wien", "Wien", "Bayern", "Bayern", "Berlin", ""],
    "place": ["Innsbruck", "Hall", "Wien", "Mauer", "Passau", "Hof", "Berlin", "Luxemburg"],
})  # fmt: skip


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("areas")
    TREE.to_csv(folder / "places.csv", index=False)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"place": rng.choice(TREE.place, 5000), "sex": rng.choice(["f", "m"], 5000)})
    frame.to_parquet(folder / "data.parquet")
    (folder / "domain.toml").write_text(
        '[attributes.place]\nkind = "hierarchy"\nfile = "places.csv"\nlevels = ["country", "region"]\n'
        '[attributes.sex]\nkind = "categories"\nvalues = ["f", "m"]\n'
    )
    (folder / "job.toml").write_text(
        '[data]\npath = "data.parquet"\ndomain = "domain.toml"\n'
        "[privacy]\nepsilon = 1.0\ndelta = 1e-9\n"
        '[[workload]]\nfamily = "marginal"\nattributes = [["country", "sex"], ["region", "sex"], ["place"]]\n'
    )
    return dp.run(folder / "job.toml", run_dir=folder / "run"), frame


def test_area_equals_the_single_query(release):
    run, _ = release
    query = np.zeros(8)
    labels = list(run.domain["place"].labels)
    for name in ("Hall", "Passau", "Luxemburg"):
        query[labels.index(name)] = 1
    found, (estimate, error) = run.area(["Hall", "Passau", "Luxemburg"]), run.answer(("place",), query=query)
    assert found.estimate == pytest.approx(estimate)
    assert found.std_error == pytest.approx(error)
    assert found.high - found.estimate == pytest.approx(1.959964 * error, rel=1e-5)


def test_area_of_whole_nodes_is_answered_at_their_level(release):
    run, frame = release
    table = run.table(("country", "sex")).set_index(["country", "sex"])
    found = run.area(["Innsbruck", "Hall", ("region", "Wien")], "sex = 'f'")
    assert found.estimate == pytest.approx(table.loc[("AT", "f"), "estimate"])
    assert found.std_error == pytest.approx(table.loc[("AT", "f"), "std_error"])
    true = ((frame.place.isin(["Innsbruck", "Hall", "Wien", "Mauer"])) & (frame.sex == "f")).sum()
    assert abs(found.estimate - true) < 6 * found.std_error


def test_difference_of_areas(release):
    run, _ = release
    one, other, both = run.area(["AT"]), run.area(["DE"]), run.area(["AT"], minus=["DE"])
    assert both.estimate == pytest.approx(one.estimate - other.estimate)
    query = np.zeros(3)
    query[[list(run.domain["country"].labels).index(name) for name in ("AT", "DE")]] = [1, -1]
    assert both.std_error == pytest.approx(run.answer(("country",), query=query)[1])
    assert run.area(["AT", "Hof"], minus=["Hof"]).estimate == pytest.approx(one.estimate)
    assert run.area(["AT"], minus=["Innsbruck", "Hall", ("region", "Wien")])[:2] == (0, 0)


def test_values_by_attribute_equal_the_predicate(release):
    run, _ = release
    assert run.area(["AT"], {"sex": "m"}) == run.area(["AT"], "sex = 'm'")
    assert run.area(["AT"], {"sex": ["f", "m"]}).estimate == pytest.approx(run.area(["AT"]).estimate)


@pytest.mark.parametrize(("nodes", "query"), [
    (["Atlantis"], None),
    (["Berlin", "Wien"], None),
    ("AT", None),
    (["AT"], "country = 'DE'"),
    (["AT"], {"sex": "x"}),
    (["AT"], 3),
])  # fmt: skip
def test_wrong_areas_are_refused(release, nodes, query):
    with refused(JobError):
        release[0].area(nodes, query)


def test_area_below_the_measured_level_is_refused(release):
    with refused(PlanError):
        release[0].area(["Hall"], "sex = 'f'")


@pytest.mark.parametrize("leaf", ["place", "code"])
def test_areas_of_two_hierarchies_equal_dense_least_squares(leaf):
    """A union of one hierarchy, with the other one summed."""
    domain = domain_of({"place": (2, 5, 9), "code": (2, 4, 7)}, sex=2)
    sets = [[a, b, "sex"] for a in ("country", "region", "place") for b in ("chapter", "code")]
    made = planned(domain, sets)
    rows, precisions, _ = dense(made)
    covariance = np.linalg.pinv((rows.T * precisions) @ rows, rcond=1e-12)
    measured = [np.random.default_rng(i).normal(size=block.rows) for i, block in enumerate(made.blocks)]
    estimates = TreeEstimates(made, [block.unit_variance for block in made.blocks], measured.__getitem__)
    nodes, weights, query = np.array([0, 3, 4]), np.array([1.0, 1.0, -1.0]), np.array([1.0, 0.0])
    found, error = estimates.combination(leaf, nodes, weights, ("sex",), query)
    leaves = np.zeros(domain[leaf].size)
    leaves[nodes] = weights
    sides = [leaves if name == leaf else np.ones(domain[name].size) for name in ("place", "code")]
    line = np.kron(np.kron(*sides), query)
    assert error**2 == pytest.approx(line @ covariance @ line)
    marginal = estimates.marginal((leaf, "sex"))
    assert found == pytest.approx(weights @ marginal[nodes] @ query)


def test_intervals_of_unions_cover():
    """95 % intervals of random unions, with the noise of the plan."""
    domain = domain_of({"place": (4, 12, 60)})
    made = planned(domain, [["country"], ["region"], ["place"]])
    rng, hits, total = np.random.default_rng(0), 0, 0
    true = rng.poisson(40, 60)
    for _ in range(200):
        values = []
        for block in made.blocks:
            exact = block.factors[0].apply(true)
            values.append(exact + rng.normal(0, np.sqrt(block.unit_variance), exact.shape))
        estimates = TreeEstimates(made, [block.unit_variance for block in made.blocks], values.__getitem__)
        for _ in range(5):
            nodes = np.flatnonzero(rng.random(60) < rng.random())
            if len(nodes):
                found, error = estimates.combination("place", nodes, np.ones(len(nodes)), (), np.ones(()))
                hits += abs(found - true[nodes].sum()) <= 1.96 * error
                total += 1
    assert 0.92 < hits / total < 0.975
