"""Growing tables with sums, means and hierarchies: estimates and standard errors against exact counts."""

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.base.errors import DomainError
from dpscale.domain import Domain
from tests.messages import refused
from tests.periods.growing import MONTHS, make_job, write

PLACES = [("AT", "Graz"), ("AT", "Wien"), ("CH", "Bern"), ("CH", "Chur"), ("CH", "Genf")]
COUNTS = 40  # codes of attribute a, so that errors have enough degrees of freedom


def make_months(seed=3):
    random = np.random.default_rng(seed)
    places = [place for _, place in PLACES]
    return {label: pd.DataFrame({"a": random.integers(0, COUNTS, 3000), "b": random.choice(places, 3000),
                                 "pay": random.integers(0, 101, 3000)}) for label in MONTHS[:3]}  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    months = make_months()
    write(folder, months)
    pd.DataFrame(PLACES, columns=["country", "place"]).to_csv(folder / "places.csv", index=False)
    workload = [{"family": "marginal", "attributes": [["a", "b"], ["a", "country"]]},
                {"family": "mean", "of": "pay", "attributes": [["a"]]}]  # fmt: skip
    job = make_job(folder, {"a": COUNTS}, workload=workload)
    with open(folder / "domain.toml", "a") as file:
        file.write('\n[attributes.b]\nkind = "hierarchy"\nfile = "places.csv"\nlevels = ["country"]\nleaf = "place"\n')
        file.write('from = "b"\n[numbers.pay]\nlow = 0\nhigh = 100\n')
    return months, dp.run(job, folder / "run")


def upto(months, number):
    return pd.concat(list(months.values())[: number + 1])


@pytest.mark.parametrize("number", [0, 2])
def test_counts_of_a_hierarchy_have_their_standard_errors_and_add_up(opened, number):
    months, release = opened
    one, exact = release.at(MONTHS[number], "cumulative"), upto(months, number)
    table = one.table(["a", "b"])
    counts = exact.groupby(["a", "b"]).size()
    truth = np.array([counts.get((row.a, row.b), 0) for row in table.itertuples()])
    ratio = np.mean(((table.estimate - truth) / table.std_error) ** 2)
    assert 0.55 < ratio < 1.45  # 200 cells
    country = one.table(["a", "country"]).estimate.to_numpy().reshape(COUNTS, 2)
    leaves = table.estimate.to_numpy().reshape(COUNTS, 5)
    assert np.allclose(country, np.stack([leaves[:, :2].sum(1), leaves[:, 2:].sum(1)], axis=1), atol=1e-6)


@pytest.mark.parametrize("kind", ["period", "cumulative"])
def test_sums_have_their_standard_errors(opened, kind):
    months, release = opened
    errors = []
    for number, label in enumerate(MONTHS[:3]):
        exact = upto(months, number) if kind == "cumulative" else months[label]
        found = release.at(label, kind).sum("pay", by=["a"])
        truth = exact.groupby("a").pay.sum().to_numpy()
        errors.append(((found.estimate.to_numpy() - truth) / found.std_error.to_numpy()) ** 2)
    assert 0.25 < np.mean(errors) < 2.6  # 40 groups; cumulative sums of three periods have common errors
    mean = release.at(MONTHS[2], "cumulative").mean("pay", by=["a"])
    truth = upto(months, 2).groupby("a").pay.mean().to_numpy()
    errors = (mean.estimate - truth) / (mean.high - mean.low) * 2 * 1.959964  # in standard errors
    assert 0.25 < np.mean(errors**2) < 2.6  # 40 groups; halved errors have a mean of 4


def test_domain_without_an_attribute_of_a_rule_is_refused():
    attributes = {name: {"kind": "categories", "values": ["x", "y"]} for name in "abc"}
    domain = Domain.from_dict({"attributes": attributes, "rule": [{"rule": "not (a = 'x' and b = 'y')"}]})
    assert domain.without("c").names == ("a", "b")
    with refused(DomainError):
        domain.without("a")


@pytest.mark.parametrize("kind", ["cumulative", "window"])
@pytest.mark.parametrize("numbers", [False, True], ids=["counts", "numbers"])
def test_rows_are_those_of_the_period_whatever_is_answered(tmp_path, kind, numbers):
    random = np.random.default_rng(5)
    months = {label: pd.DataFrame({"a": random.integers(0, 3, size), "pay": random.integers(0, 101, size)})
              for label, size in zip(MONTHS[:3], (300, 400, 500), strict=True)}  # fmt: skip
    write(tmp_path, months)
    workload = [{"family": "marginal", "degree": 1}]
    if numbers:
        workload.append({"family": "mean", "of": "pay", "attributes": [[]]})
    job = make_job(tmp_path, {"a": 3}, workload=workload, synthesize={},
                   privacy={"privacy_cost": 50.0, "allow_weak_privacy": True})  # fmt: skip
    job["time"] = {"answers": [kind]} | ({"window": 2} if kind == "window" else {})
    if numbers:
        with open(tmp_path / "domain.toml", "a") as file:
            file.write("\n[numbers.pay]\nlow = 0\nhigh = 100\n")
    last = dp.run(job, tmp_path / "run").at(MONTHS[2], kind).synthetic().compute()
    assert len(last) == pytest.approx(1200 if kind == "cumulative" else 900, abs=15)
    if numbers:
        exact = pd.concat(list(months.values())[0 if kind == "cumulative" else 1 :])
        assert last.pay.mean() == pytest.approx(exact.pay.mean(), abs=2)
