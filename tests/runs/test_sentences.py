"""Messages about the budget and the privacy unit name the field, the value, the accepted values and the remedy."""

import pytest

import dpscale as dp
from tests.runs.small import write_job


@pytest.mark.parametrize(("privacy", "says"), [
    ({"epsilon": 1.0, "delta": 0.0}, "privacy.delta: 0; expected a number above 0 and below 1; leave delta out"),
    ({"epsilon": float("nan"), "delta": 1e-9}, "privacy.epsilon: nan: it should be a finite number"),
    ({"epsilon": float("inf"), "delta": 1e-9}, "privacy.epsilon: inf: it should be a finite number"),
])  # fmt: skip
def test_invalid_budget_is_refused(place, privacy, says):
    with pytest.raises(dp.JobError) as caught:
        dp.run(write_job(place, privacy={"dataset": "small", **privacy}), place / "run")
    assert says in str(caught.value)
    assert "docs/" not in str(caught.value)


def test_budget_below_usable_accuracy_warns(place):
    job = write_job(place, privacy={"epsilon": 1e-12, "delta": 1e-9, "dataset": "small"})
    with pytest.warns(UserWarning, match="noise of each count exceeds 1,000,000 records"):
        dp.run(job, place / "run")


def test_unknown_unit_column_lists_data_columns(place):
    data = {"path": "data", "domain": "domain.toml", "privacy_unit": "prson", "max_rows_per_unit": 2}
    with pytest.raises(dp.DataError) as caught:
        dp.run(write_job(place, data=data), place / "run")
    assert str(caught.value).startswith("data.privacy_unit: 'prson', which is not a column of the data")
    assert "person" in str(caught.value)
    assert "did you mean 'person'" in str(caught.value)
