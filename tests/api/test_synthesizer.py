"""Synthesizer with the interface of scikit-learn: parameters, fit, sample, clone."""

import io
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils import get_tags

import dpscale as dp
from dpscale.api.public import SpentWarning
from dpscale.workload.workload import PAIRS_OF_TARGET, TRIPLES_OF_TARGET
from tests.messages import refused


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "user"))
    warnings.simplefilter("ignore", SpentWarning)
    return tmp_path / "user"


def correlated_frame():
    rng = np.random.default_rng(1)
    first = rng.choice(["x", "y"], 3000, p=[0.7, 0.3])
    second = np.where(rng.random(3000) < 0.9, first == "x", rng.random(3000) < 0.5)
    return pd.DataFrame({"a": first, "b": second, "c": rng.integers(0, 4, 3000)})


def synthesizer(**changes):
    return dp.Synthesizer(dp.Domain(a=["x", "y"], b=bool, c=4), **{"epsilon": 10.0, "degree": 2} | changes)


def test_rows_have_the_columns_values_and_pairs_of_the_data():
    frame = correlated_frame()
    rows = synthesizer().fit(frame).sample(2000)
    assert len(rows) == 2000
    assert sorted(rows.columns) == ["a", "b", "c"]
    assert set(rows["a"]) == {"x", "y"}
    shares, exact = (pd.crosstab(one["a"].astype(str), one["b"], normalize=True) for one in (rows, frame))
    assert np.abs(shares.to_numpy() - exact.to_numpy()).max() < 0.03


def test_samples_cost_nothing_and_a_fit_is_charged_once(data_folder):
    fitted = synthesizer().fit(correlated_frame())
    assert len(fitted.sample(10)) == 10
    assert len(fitted.sample(50)) == 50
    assert len(fitted.sample()) == pytest.approx(3000, abs=100)
    again = synthesizer().fit(correlated_frame())
    assert again.release_.path == fitted.release_.path
    with pytest.warns(SpentWarning, match="epsilon 10"):
        synthesizer().fit(correlated_frame())


def test_progress_is_shown_by_default_and_hidden_by_none(capsys, monkeypatch):
    monkeypatch.setenv("DPSCALE_PROGRESS", "0")
    labels = list[str]()
    quiet = synthesizer().fit(correlated_frame(), progress=None)
    quiet.sample(10, progress=None)
    assert capsys.readouterr().err == ""
    synthesizer(epsilon=9.0).fit(correlated_frame(), progress=lambda label, *_: labels.append(label))
    assert "count" in labels
    assert capsys.readouterr().err == ""
    quiet.sample(20)
    assert "dpscale: drawing synthetic rows: " in capsys.readouterr().err


def test_parameters_are_those_of_scikit_learn():
    one = synthesizer()
    copy = clone(one).set_params(epsilon=2.0)
    assert (one.epsilon, copy.epsilon, copy.degree) == (10.0, 2.0, 2)
    assert "epsilon=10.0" in repr(one)
    assert one.plan().measurements.mechanism == "aim-grem"


def test_degree_and_options_are_those_of_the_mechanism():
    def options(**changes):
        return synthesizer(**changes).plan().job.options

    assert options(degree=1).degree == 2
    assert options(degree=3).degree == 3
    assert options(degree=2, options={"degree": 4, "rounds": 5}).degree == 4
    assert options(options={"rounds": 5}).rounds == 5
    assert options(options={"published": True}).published
    assert options(mechanism="mst").model_dump() == options(mechanism="mst", degree=3).model_dump()


def test_target_weighs_its_pairs_and_triples():
    made = synthesizer(degree=3, target="c").plan()
    marginals, pairs, triples = made.job.build_workload(made.job.read_domain()).parts
    assert [part.sets for part in (marginals, pairs, triples)] == [
        (("a", "b", "c"),), (("a", "c"), ("b", "c")), (("a", "b", "c"),)
    ]  # fmt: skip
    assert pairs.weights == pytest.approx((PAIRS_OF_TARGET / 2,) * 2, rel=1e-5)
    assert triples.weights == pytest.approx((TRIPLES_OF_TARGET,), rel=1e-5)


def test_fitted_objects_are_pickled_without_secrets_and_frames(tmp_path):
    fitted = synthesizer().fit(correlated_frame())
    for copy in (pickle.loads, joblib_copy):
        packed = pickle.dumps(fitted)
        again = copy(packed)
        assert again.get_params()["epsilon"] == 10.0
        assert again.sample(20).equals(fitted.sample(20))
        assert again.release_.marginal(("a",)).tolist() == fitted.release_.marginal(("a",)).tolist()
    assert len(packed) < 10_000, "the job and a path, not the frame of 3,000 rows"
    secrets = [
        file.read_bytes() for file in fitted.release_.path.rglob("*") if "secret" in file.name or "key" in file.name
    ]
    assert all(secret[:16] not in packed for secret in secrets if secret)
    plan = pickle.loads(pickle.dumps(fitted.plan()))
    assert plan.measurements.digest == fitted.plan().measurements.digest


def joblib_copy(packed):
    joblib = pytest.importorskip("joblib")
    buffer = io.BytesIO()
    joblib.dump(pickle.loads(packed), buffer)
    buffer.seek(0)
    return joblib.load(buffer)


def test_tags_are_those_of_an_estimator_without_a_target():
    tags = get_tags(synthesizer())
    assert (tags.estimator_type, tags.target_tags.required, tags.input_tags.categorical) == (None, False, True)


def test_number_of_rows_has_the_name_of_sdv():
    fitted = synthesizer().fit(correlated_frame())
    assert fitted.sample(num_rows=7).equals(fitted.sample(7))
    with refused(dp.JobError):
        fitted.sample(7, num_rows=7)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: synthesizer().sample(5), "call fit first"),
        (lambda: synthesizer(target="d").plan(), "synthesize.target"),
        (lambda: synthesizer().set_params(epsilo=1), "'epsilo'"),
        (lambda: synthesizer(epsilon=0).plan(), "privacy.epsilon"),
        (lambda: dp.Synthesizer({"a": 3}, epsilon=1).plan(), "a Domain"),
        (lambda: synthesizer(mechanism="aim").plan().measurements, "mechanism"),
        (lambda: synthesizer().fit(correlated_frame()).sample(0), "synthesize"),
    ],
)
def test_wrong_calls_get_one_sentence(call, says):
    with pytest.raises(dp.DpscaleError) as error:
        call()
    assert says in str(error.value)


@pytest.mark.parametrize("mechanism", ["aim-grem", "mst"])
def test_rows_given_values_have_the_distribution_of_the_release(mechanism):
    frame = correlated_frame()
    fitted = synthesizer(mechanism=mechanism).fit(frame)
    rows = fitted.sample(2000, given={"a": "y"})
    assert len(rows) == 2000
    assert set(rows["a"]) == {"y"}
    assert rows.dtypes.equals(fitted.sample(10).dtypes)
    told = fitted.release_.conditional("b", given={"a": "y"})
    expected = dict(zip(told["b"].astype(str).str.lower(), told["probability"], strict=True))["true"]
    share = (rows["b"].astype(str).str.lower() == "true").mean()
    exact = (frame["b"][frame["a"] == "y"]).mean()
    assert share == pytest.approx(exact, abs=0.06)
    assert share == pytest.approx(expected, abs=0.03)
    assert set(fitted.sample(500, given={"a": "y", "c": [1, 2]})["c"]) == {1, 2}
    assert len(fitted.sample(given={"a": "y"})) == pytest.approx((frame["a"] == "y").sum(), rel=0.1)


@pytest.mark.parametrize("mechanism", ["aim-grem", "mst"])
def test_random_state_names_another_draw(mechanism):
    fitted = synthesizer(mechanism=mechanism).fit(correlated_frame())
    first, again, other = (fitted.sample(300, random_state=state) for state in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
    given = [fitted.sample(300, given={"a": "x"}, random_state=state) for state in (None, None, 4)]
    assert given[0].equals(given[1])
    assert not given[0].equals(given[2])


def test_rare_and_unknown_values_are_refused(monkeypatch):
    from dpscale.runs.stages import synthesize

    fitted = synthesizer().fit(correlated_frame())
    with refused(dp.JobError):
        fitted.sample(3, given={"a": "z"})
    with refused(dp.JobError):
        fitted.sample(3, random_state="one")
    with refused(dp.JobError):
        fitted.sample(-3, given={"a": "x"})
    monkeypatch.setattr(synthesize, "MOST_DRAWN", 10)
    with refused(dp.PlanError):
        fitted.sample(9, given={"a": "y"})
