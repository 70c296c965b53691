"""Answers are unbiased and have correct standard errors, over many seeded measurements of a small table, for each kind
of workload.
"""

import numpy as np
import pytest
from scipy import stats

from dpscale import Domain, Workload, plan
from dpscale.counting.count import Layout
from dpscale.measurement import MeasurementStore, measure_layouts
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.mechanisms.matrix_mechanism import FixedPlan
from dpscale.privacy.accounting import Budget
from dpscale.privacy.secret import SecretFile, make_secret, read_secret, secret_tag
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from tests.oracles import explicit_strategy, explicit_workload

DOMAIN = Domain({"a": 5, "b": 4, "c": 3})
RUNS = 200
LEVEL = 1e-4
COUNTS = np.random.default_rng(3).poisson(40, DOMAIN.shape(DOMAIN.names))


def make_workload(kind) -> Workload:
    """Return a workload of families or of a query array; each family has its own pair of attributes and thus its own
    strategy.
    """
    if kind == "array":
        return Workload(DOMAIN).add_queries(("a", "b", "c"), np.random.default_rng(5).normal(size=(80, 5, 4, 3)))
    families = Workload(DOMAIN).add("marginal", attributes=[("a", "b")]).add("prefix", attributes=[("b", "c")])
    return families.add("range", attributes=[("a", "c")])


def run_once(folder, fixed_plan, seed) -> np.ndarray:
    """Return the answers to all queries from one seeded measurement, by the code path of a job."""
    folder.mkdir()
    released = MeasurementStore(folder, f"seed{seed}", "snapshot", fixed_plan)
    make_secret(folder / "secret.key", seed)
    secret = SecretFile(folder / "secret.key", secret_tag(read_secret(folder / "secret.key")))
    wanted = released.missing(fixed_plan.first_decision())
    layout = Layout(DOMAIN, tuple(dict.fromkeys(names for one in wanted for names in one.sources)))
    others = {s: tuple(i for i, n in enumerate(DOMAIN.names) if n not in s) for s in layout.sets}
    flat = np.concatenate([COUNTS.sum(axis=others[s]).reshape(-1) for s in layout.sets])
    for one in wanted:
        measure_layouts([layout], one, secret, flat)
    estimates, made = released.evidence().least_squares(), fixed_plan.plan
    found = [estimates.part_answers(part, names)[0].reshape(-1) for part in made.workload.parts for names in part.sets]
    return np.concatenate(found)


@pytest.mark.parametrize(("kind", "mechanism"), [
    ("array", "query-smasher"),
    *(pytest.param(*case, marks=pytest.mark.slow)
      for case in (("families", "query-smasher"), ("array", "identity"),
                   ("families", "identity"), ("families", "weighted-residuals"), ("array", "weighted-residuals"))),
])  # fmt: skip
def test_answers_are_unbiased_with_correct_errors(tmp_path, kind, mechanism):
    """The whitened errors of 200 runs have mean 0 and variance 1, and the reported variances equal the explicit
    covariance. With at least 30 independent errors per run the test rejects a variance that is wrong by 15 %, which
    is checked too.
    """
    workload = make_workload(kind)
    queries, made = explicit_workload(workload)[0], plan(workload, mechanism)
    fixed_plan = FixedPlan(made, PlanningProblem(workload, Budget("gaussian", 0.5)))
    variances = [draw.lattice_variance for draw in fixed_plan.draws]
    strategy = explicit_strategy(made, variances)
    covariance = queries @ np.linalg.pinv(strategy.T @ strategy, hermitian=True) @ queries.T
    if mechanism == "identity":  # averages residual by residual, which is not all of least squares: its own covariance
        covariance = linear_map_covariance(made, variances)
    values, vectors = np.linalg.eigh(covariance)
    nonzero = values > values[-1] * 1e-7
    whiten = vectors[:, nonzero] / np.sqrt(values[nonzero])
    found = np.array([run_once(tmp_path / str(seed), fixed_plan, seed) for seed in range(RUNS)])
    z = (found - queries @ COUNTS.reshape(-1)) @ whiten
    freedom = z.size
    assert freedom >= 30 * RUNS
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], freedom)
    assert low < (z**2).sum() < high
    assert abs(z.mean(axis=0) * np.sqrt(RUNS)).max() < stats.norm.ppf(1 - LEVEL / 2 / nonzero.sum())
    for wrong in (0.85, 1.15):
        assert not low < (z**2).sum() * wrong < high
    reported = np.concatenate(
        [
            LeastSquaresEstimates(made, variances, lambda i: np.zeros(made.blocks[i].rows))
            .part_variances(part, names)
            .reshape(-1)
            for part in workload.parts
            for names in part.sets
        ]
    )
    np.testing.assert_allclose(reported, np.diag(covariance), rtol=1e-6)


def linear_map_covariance(made, variances) -> np.ndarray:
    """Return the covariance of the estimates as a linear map of the measured values, obtained from unit vectors."""
    columns = []
    for index, block in enumerate(made.blocks):
        for row in range(int(np.prod(block.rows, dtype=int))):
            unit = np.zeros(int(np.prod(block.rows, dtype=int)))
            unit[row] = 1.0

            def read(i, index=index, unit=unit):
                return unit.reshape(made.blocks[i].rows) if i == index else np.zeros(made.blocks[i].rows)

            estimates = LeastSquaresEstimates(made, variances, read)
            answers = [estimates.part_answers(p, names)[0].reshape(-1) for p in made.workload.parts for names in p.sets]
            columns.append(np.concatenate(answers) * np.sqrt(variances[index]))
    matrix = np.array(columns).T
    return matrix @ matrix.T
