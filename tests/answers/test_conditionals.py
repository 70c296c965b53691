"""Conditional distributions of a release against its marginals, its joint distribution and pgmpy."""

import numpy as np
import pytest

import dpscale as dp
from tests.audit.small import SIZES, write
from tests.messages import refused


@pytest.fixture(scope="module", params=["residual-planner", "mst"])
def released(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("conditional")
    return dp.run(write(folder, mechanism={"name": request.param}), folder / "run")


def probabilities(release, attributes, **given):
    frame = release.conditional(attributes, given=given)
    shape = [SIZES[name] for name in ([attributes] if isinstance(attributes, str) else attributes)]
    assert frame["probability"].sum() == pytest.approx(1)
    return frame["probability"].to_numpy().reshape(shape)


def expected(release, first, second, cells):
    counts = np.maximum(release.marginal((first, second))[:, cells].sum(axis=1), 0)
    return counts / counts.sum()


def test_distribution_given_a_value_is_a_slice_of_the_marginal(released):
    for first, second in [("a", "b"), ("b", "a"), ("c", "a")]:
        labels = released.domain[second].labels
        for cell, label in enumerate(labels):
            found = probabilities(released, first, **{second: label})
            assert found == pytest.approx(expected(released, first, second, [cell]), abs=1e-9)
        several = probabilities(released, first, **{second: labels[:2]})
        assert several == pytest.approx(expected(released, first, second, [0, 1]), abs=1e-9)


def test_distribution_given_nothing_is_the_marginal(released):
    counts = np.maximum(released.marginal(("b", "a")), 0)
    assert probabilities(released, ("b", "a")) == pytest.approx(counts / counts.sum(), abs=1e-9)
    frame = released.conditional(("b", "a"))
    assert frame["b"].tolist() == [b for b in released.domain["b"].labels for _ in range(SIZES["a"])]


@pytest.mark.slow  # the import of pgmpy alone is 40 CPU s, which tests/reconstruction/test_graphical.py has too
def test_graphical_model_answers_as_pgmpy(tmp_path):
    pytest.importorskip("pgmpy", reason="pgmpy is not installed")
    from pgmpy.inference import VariableElimination

    release = dp.run(write(tmp_path, mechanism={"name": "mst"}), tmp_path / "run")
    one, other = ({name: release.domain[name].labels[1]} for name in ("a", "c"))
    network = VariableElimination(release.graphical_model())
    for evidence in (one, one | other):
        own = network.query(["b"], evidence=evidence, show_progress=False)
        assert own.state_names["b"] == release.domain["b"].labels
        assert probabilities(release, "b", **evidence) == pytest.approx(own.values, abs=1e-9)


def test_refusals_are_one_sentence(released):
    with refused(dp.DomainError):
        released.conditional("a", given={"a": 0})
    with refused(dp.DomainError):
        released.conditional("z")
    with refused(dp.JobError):
        released.conditional("a", given={"b": 99})
    with refused(dp.JobError):
        released.conditional("a", given={"b": []})
    with refused(dp.JobError):
        released.conditional([])
    with refused(dp.JobError):
        released.conditional("a", given="b")


NAMES = {
    "sum": lambda release: release.sum(["a"]),
    "mean": lambda release: release.mean(["a"]),
    "quantile": lambda release: release.quantile(["a"], 0.5),
    "ratio": lambda release: release.ratio("a", ["b"]),
    "crosstab": lambda release: release.crosstab(["a"], "b"),
    "test": lambda release: release.test(["a"], "b"),
    "cumulative": lambda release: release.cumulative(["a"]),
    "share": lambda release: release.share(["a"], 1),
    "units": lambda release: release.units(3),
    "holm": lambda release: release.holm(["a"]),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_that_are_no_texts_are_refused(released, case):
    with refused(dp.DpscaleError):
        NAMES[case](released)


def test_values_without_estimated_records_and_large_sets_are_refused(released, monkeypatch):
    from dpscale.answers import statistics

    monkeypatch.setattr(statistics, "_counts", lambda *_: np.array([-1.0, 0.0]))
    with refused(dp.PlanError):
        released.conditional("b", given={"a": released.domain["a"].labels[0]})
    monkeypatch.setattr(statistics, "MOST_CONDITIONED", 2)
    with refused(dp.PlanError):
        released.conditional("b", given={"a": released.domain["a"].labels[0]})
