"""`reconstruct.method = "graphical"` with every mechanism: accuracy, size limit and model file."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.reconstruction.graphical import check_size, read_graphical, write_graphical
from dpscale.reconstruction.graphical_fit import fit
from tests.audit.composition import audit_run
from tests.audit.small import SIZES, frame, write
from tests.messages import refused

GRAPHICAL = {"method": "graphical"}
MATRIX = [
    "query-smasher",
    "weighted-residuals",
    "residual-planner",
    "residual-planner-plus",
    "hdmm",
    "identity",
    "eigen-design",
]
PAIRS = [("a", "b"), ("a", "c"), ("b", "c")]
PLENTY = {"privacy_cost": 5e4, "dataset": "small", "allow_weak_privacy": True}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mechanism", [*MATRIX, "aim-grem", "mst", "aim-pgm"])
def test_every_mechanism_gives_accurate_graphical_model(tmp_path, mechanism):
    """At a large budget estimates equal the counts, except pairs that a tree does not measure; all are consistent."""
    release = dp.run(write(tmp_path, mechanism={"name": mechanism}, reconstruct=GRAPHICAL, privacy=PLENTY,
                           workload=[{"family": "marginal", "degree": 2}]), tmp_path / "run")  # fmt: skip
    exact = frame()
    tables = {names: release.marginal(names) for names in PAIRS}
    counts = {(a, b): np.histogram2d(exact[a], exact[b], bins=[range(SIZES[a] + 1), range(SIZES[b] + 1)])[0]
              for a, b in PAIRS}  # fmt: skip
    near = [np.abs(table - counts[pair]).max() < 1 for pair, table in tables.items()]
    assert sum(near) >= (2 if mechanism in ("mst", "aim-pgm", "aim-grem") else 3)
    assert tables["a", "b"].sum(axis=1) == pytest.approx(tables["a", "c"].sum(axis=1), abs=1e-6)
    assert all((table >= 0).all() for table in tables.values())
    assert "graphical model" in (release.path / "report.html").read_text()
    assert audit_run(release.path, tmp_path / "ledger.sqlite").sound


def test_prefix_strategies_are_fitted_exactly(tmp_path):
    """Prefix queries by hdmm and query-smasher at a large budget: the counts."""
    for name in ("hdmm", "query-smasher"):
        queries = [{"family": "prefix", "attributes": [["a", "c"]]}]
        path = write(tmp_path / name, mechanism={"name": name}, reconstruct=GRAPHICAL, privacy=PLENTY, workload=queries)
        release = dp.run(path, tmp_path / name / "run")
        exact = np.histogram2d(frame()["a"], frame()["c"], bins=[range(5), range(6)])[0]
        assert np.abs(release.marginal(("a", "c")) - exact).max() < 1


def test_too_large_model_is_refused_before_reading_data(tmp_path):
    path = write(tmp_path, reconstruct=GRAPHICAL | {"most_cells": 30})
    with refused(dp.PlanError):  # fmt: skip
        dp.run(path, tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()
    with refused(dp.PlanError):
        check_size(dict.fromkeys("abcd", 10), [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")], 500)


def test_graphical_model_round_trips_through_file(tmp_path):
    from tests.reconstruction.explicit import SHAPES, SIZES as FIVE, observe_sets

    rng = np.random.default_rng(0)
    model = fit(FIVE, observe_sets(SHAPES["a square"], rng.uniform(1, 5, tuple(FIVE.values())), 1.0, rng))
    write_graphical(tmp_path / "graphical.npz", model)
    again = read_graphical(tmp_path / "graphical.npz")
    assert (again.total, again.gap) == (model.total, model.gap)
    assert (again.marginal(("a", "d", "e")) == model.marginal(("a", "d", "e"))).all()


def test_pgmpy_gives_same_answers():
    pytest.importorskip("pgmpy")
    from pgmpy.inference import VariableElimination

    from tests.reconstruction.test_graphical_model import NAMES, SHAPES, make_model

    for name in ("a circle of five", "apart", "two shared"):
        model = make_model(SHAPES[name])
        network = model.to_pgmpy()
        assert network.check_model()
        found = VariableElimination(network).query(["a", "e"], show_progress=False)
        values = found.values if found.variables == ["a", "e"] else found.values.T
        assert values == pytest.approx(model.marginal(("a", "e")) / model.total, abs=1e-9)
        if name == "apart":  # pgmpy has junction trees of what hangs together alone
            continue
        cliques = {frozenset(node) for node in network.to_junction_tree().nodes()}
        assert {frozenset(clique) for clique in model.tree.cliques} <= cliques | {frozenset({n}) for n in NAMES}
