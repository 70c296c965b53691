"""The sample that models see: uniform, bounded, the same however the work is cut; and rows that the domain drops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from dpscale.counting.cover import plan_cover
from dpscale.counting.program import Program
from dpscale.domain import Domain
from dpscale.engine import LocalEngine
from dpscale.evaluation.inputs import ComparedTable, number_partitions, sample
from dpscale.evaluation.marginals import count_ways
from dpscale.records import Table
from dpscale.records.origin import stamps

DOMAIN = Domain.from_dict({"attributes": {
    "number": {"kind": "integer", "low": 0, "high": 999},
    "kept": {"kind": "coded", "size": 2, "outside": "drop"},
}})  # fmt: skip


@pytest.fixture
def side(tmp_path: Path) -> ComparedTable:
    """A thousand records with the numbers 0 … 999; every tenth is dropped, for what it has in the other column."""
    numbers = np.arange(1000)
    frame = pd.DataFrame({"number": numbers, "kept": np.where(numbers % 10 == 0, 7, numbers % 2)})
    for part in range(5):
        frame.iloc[part::5].to_parquet(tmp_path / f"{part}.parquet")
    table = Table.open(tmp_path, DOMAIN)
    return ComparedTable("DATA", table, stamps(table))


def drawn(side: ComparedTable, most: int, workers: int = 1, release: str = "r") -> np.ndarray:
    return sample(LocalEngine("threads", workers), side, ["number"], most, release)[:, 0]


def test_it_has_so_many_rows_each_once_and_none_that_is_dropped(side: ComparedTable) -> None:
    found = drawn(side, 300)
    assert len(found) == len(set(found.tolist())) == 300
    assert not (found % 10 == 0).any()
    assert sorted(drawn(side, 5000).tolist()) == [number for number in range(1000) if number % 10]


def test_how_the_work_is_cut_changes_nothing(side: ComparedTable) -> None:
    assert drawn(side, 300).tolist() == drawn(side, 300, workers=4).tolist()
    assert drawn(side, 300).tolist() == drawn(side, 5000).tolist()[:300]
    assert drawn(side, 300).tolist() != drawn(side, 300, release="another").tolist()


def test_every_record_is_as_likely_as_any_other(side: ComparedTable) -> None:
    hits = sum(int((drawn(side, 90, release=f"r{k}") < 500).sum()) for k in range(30))
    assert binomtest(hits, 30 * 90, 0.5).pvalue > 1e-3


def test_its_order_is_random(side: ComparedTable) -> None:
    found = drawn(side, 5000)
    assert abs(np.corrcoef(np.arange(900), found)[0, 1]) < 0.15
    assert found[:450].mean() == pytest.approx(found[450:].mean(), abs=100)


def test_what_the_domain_drops_is_counted_nowhere(side: ComparedTable) -> None:
    program = Program.of(plan_cover(DOMAIN, [("number",)], 1000))
    halves = count_ways(DOMAIN, program, number_partitions(side, side.table.partitions), 2, "r")
    assert (sum(halves) == (np.arange(1000) % 10 > 0)).all()
