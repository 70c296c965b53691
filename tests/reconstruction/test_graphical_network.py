"""Bayesian networks of graphical models against the joint distribution: BIF files, pgmpy, the command `model`."""

import json
import pickle
import re
import sys
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.__main__ import main
from dpscale.ledger import Ledger
from dpscale.reconstruction import junction_tree as models
from dpscale.reconstruction.junction_tree import identifiers
from tests.audit.small import SIZES as SMALL, measurements, write
from tests.messages import refused
from tests.reconstruction.explicit import NAMES, SHAPES, SIZES
from tests.reconstruction.test_graphical_model import SETS, explicit_log_potentials, make_model
from tests.selection import mostly_slow

GRAPHICAL = {"method": "graphical"}


def joint_of(tables):
    """Return the product of conditional tables over all cells of `NAMES`."""
    joint = np.ones(tuple(SIZES.values()))
    for table in tables:
        family = (table.name, *table.parents)
        ordered = sorted(family, key=NAMES.index)
        values = table.values.transpose([family.index(name) for name in ordered])
        joint = joint * values.reshape([SIZES[name] if name in family else 1 for name in NAMES])
    return joint


def joint_of_bif(text):
    """Return the joint distribution of a BIF file over its variables, by a reader of its own."""
    states = {name: one.split(", ") for name, one in
              re.findall(r"variable (\S+) \{\n  type discrete \[ \d+ \] \{ (.*) \};\n\}\n", text)}  # fmt: skip
    joint = np.ones([len(own) for own in states.values()])
    for name, parents, body in re.findall(r"probability \( (\S+?)(?: \| (.*?))? \) \{\n(.*?)\n\}\n", text, re.DOTALL):
        given_names = parents.split(", ") if parents else []
        rows = {}
        for line in body.splitlines():
            key, _, values = line.strip().rstrip(";").rpartition(") ") if given_names else ("", "", line.strip()[6:-1])
            rows[tuple(key.lstrip("(").split(", ")) if key else ()] = [float(one) for one in values.split(", ")]
        for cells in product(*(range(len(own)) for own in states.values())):
            at = dict(zip(states, cells, strict=True))
            joint[cells] *= rows[tuple(states[one][at[one]] for one in given_names)][at[name]]
    return list(states), joint


@settings(max_examples=60, deadline=None)
@given(SETS, st.integers(0, 2**32 - 1))
def test_conditionals_have_the_joint_distribution(sets, seed):
    model = make_model(sets, seed)
    logs, log_total = explicit_log_potentials(model)
    tables = model.conditionals(10**6)
    assert joint_of(tables) == pytest.approx(np.exp(logs - log_total), abs=1e-12)
    seen = set()
    for table in tables:
        assert set(table.parents) <= seen, "an attribute follows its parents"
        assert table.values.sum(axis=0) == pytest.approx(1)
        seen.add(table.name)
    assert seen == set(NAMES)


@pytest.mark.parametrize("shape", SHAPES)
def test_bif_has_the_joint_distribution(shape):
    model = make_model(SHAPES[shape])
    logs, log_total = explicit_log_potentials(model)
    names, joint = joint_of_bif(model.to_bif())
    assert names == list(NAMES)
    assert joint == pytest.approx(np.exp(logs - log_total), abs=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", mostly_slow(SHAPES, list(SHAPES)[:4]))
def test_pgmpy_reads_the_file_and_equals_the_model(shape):
    readwrite = pytest.importorskip("pgmpy.readwrite", reason="pgmpy is not installed")
    from pgmpy.inference import VariableElimination

    model, labels = make_model(SHAPES[shape]), {"a": ["[0, 1)", "[1, 2)", None], "e": ["x y", "x-y", "x.y"]}
    read = readwrite.BIFReader(string=model.to_bif(labels)).get_model()
    own = model.to_pgmpy("bayesian")
    for network in (read, own):
        assert network.check_model()
        found = VariableElimination(network).query(["a", "e"], show_progress=False)
        states = {"a": ["0_1", "1_2", "null"], "e": ["x_y", "x-y", "x.y"]} if network is read else None
        order = [found.state_names[name] if states is None else states[name] for name in ("a", "e")]
        values = [[found.get_value(a=a, e=e) for e in order[1]] for a in order[0]]
        assert np.array(values) == pytest.approx(model.marginal(("a", "e")) / model.total, abs=1e-9)


def test_identifiers_are_unique_and_have_no_special_characters():
    given_names = ["a b", "a,b", "A_b", "", None, "null", "[10, 20)", "(", "Köln", "x;}\n\"'", -3]
    found = identifiers(given_names)
    assert found == ["a_b", "a_b_2", "A_b_3", "empty", "null", "null_2", "10_20", "empty_2", "Köln", "x", "-3"]
    assert len({one.casefold() for one in found}) == len(given_names)


def test_impossible_parents_have_uniform_rows():
    """A given cell leaves no probability for the others; the file still has a distribution in every row."""
    model = make_model(SHAPES["a circle of five"]).given(a=1)
    for table in model.conditionals(10**6):
        assert table.values.sum(axis=0) == pytest.approx(1)
    _, joint = joint_of_bif(model.to_bif())
    assert joint.sum(axis=(1, 2, 3, 4)) == pytest.approx([0, 1, 0])


def test_too_large_cliques_are_refused(monkeypatch):
    monkeypatch.setattr(models, "MOST_BIF_CELLS", 5)
    with refused(dp.PlanError):
        make_model(SHAPES["a circle of five"]).to_bif()


@pytest.fixture(scope="module", params=["residual-planner", "aim-pgm", "mst"])
def released(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    method = GRAPHICAL if request.param == "residual-planner" else {"method": "auto"}
    return dp.run(write(folder, mechanism={"name": request.param}, reconstruct=method), folder / "run")


def list_charges(path):
    with Ledger.open(path) as ledger:
        return [one["state"] for own in ledger.summary()["datasets"].values() for one in own["releases"]]


def run_command(*command, code=0):
    result = CliRunner().invoke(main, [str(word) for word in command], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_command_writes_the_estimates_of_the_release_and_spends_nothing(released, tmp_path):
    before, ledger = measurements(released.path), released.path.parent / "ledger.sqlite"
    charges = list_charges(ledger)
    summary = json.loads(run_command("model", released.path, "--json").stdout)
    assert summary == {"model": str(released.path / "model.bif"), "format": "bif"}
    run_command("model", released.path, "--out", tmp_path / "again.bif")
    assert (tmp_path / "again.bif").read_bytes() == (released.path / "model.bif").read_bytes()
    names, joint = joint_of_bif((tmp_path / "again.bif").read_text())
    assert names == list(SMALL)
    for pair in (("a", "b"), ("b", "c"), ("a", "c")):
        left = tuple(axis for axis, name in enumerate(names) if name not in pair)
        expected = released.marginal(pair)
        assert joint.sum(axis=left) == pytest.approx(expected / expected.sum(), abs=1e-9)
    assert (measurements(released.path), list_charges(ledger)) == (before, charges)


def test_release_gives_networks_of_pgmpy(released, tmp_path):
    pytest.importorskip("pgmpy", reason="pgmpy is not installed")
    from pgmpy.inference import VariableElimination

    run_command("model", released.path, "--format", "pgmpy", "--out", tmp_path / "model.pickle")
    pickled = pickle.loads((tmp_path / "model.pickle").read_bytes())
    expected = released.marginal(("a",)) / released.marginal(("a",)).sum()
    for network in (released.graphical_model(), released.graphical_model("markov"), pickled):
        found = VariableElimination(network).query(["a"], show_progress=False)
        assert found.state_names["a"] == released.domain["a"].labels
        assert found.values == pytest.approx(expected, abs=1e-9)
    with refused(dp.JobError):
        released.graphical_model("tree")


def test_estimates_without_a_distribution_are_refused_in_one_sentence(tmp_path):
    release = dp.run(write(tmp_path), tmp_path / "run")
    expected = r"reconstruct.method: least-squares estimates of .*expected a graphical model; run a job with .*aim-pgm"
    with refused(dp.PlanError):
        release.graphical_model()
    caught = run_command("model", release.path, code=2)
    assert re.search(expected, caught.stderr)
    assert not (release.path / "model.bif").exists()


def test_missing_pgmpy_is_one_sentence_that_names_the_extra(released, monkeypatch, tmp_path):
    """A BIF file does not need it."""
    monkeypatch.setitem(sys.modules, "pgmpy.factors.discrete", None)
    with refused(dp.PlanError):
        released.graphical_model()
    assert "dpscale[graphical]" in run_command("model", released.path, "--format", "pgmpy", code=2).stderr
    run_command("model", released.path, "--out", tmp_path / "model.bif")
