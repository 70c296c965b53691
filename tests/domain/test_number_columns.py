"""Numbers of a domain that is written in Python."""

import pandas as pd
import pytest

import dpscale as dp
from tests.messages import refused


def test_number_is_that_of_a_domain_file():
    tables = {
        "attributes": {"region": {"kind": "categories", "values": ["N", "S"], "outside": "reject"}},
        "numbers": {"cost": {"low": 0, "high": 400, "step": 0.01, "nulls": "skip", "outside": "clip"}},
    }
    written = dp.Domain(region=["N", "S"], cost=dp.number(0, 400, step=0.01, nulls="skip"))
    assert written.digest == dp.Domain.from_dict(tables).digest
    assert written.number_names == {"cost"}


def test_number_and_attribute_of_one_column_have_a_mean(tmp_path):
    frame = pd.DataFrame({"region": ["N", "S"] * 1000, "fare": [10, 30] * 1000})
    domain = dp.Domain(region=["N", "S"], fare=dp.bins(0, 40, 10), paid=dp.number(0, 40, column="fare"))
    rows = dp.table(frame, by=["region"], mean="paid", domain=domain, epsilon=5, ledger=tmp_path / "ledger.sqlite")
    assert rows["paid"].tolist() == pytest.approx([10, 30], abs=1)


@pytest.mark.parametrize("given", [
    lambda: dp.Domain(cost=dp.number(5, 1)),
    lambda: dp.Domain(cost=dp.number(0, 1, outside="category")),
])  # fmt: skip
def test_wrong_number_is_refused_by_the_domain(given):
    with refused(dp.DomainError):
        given()
