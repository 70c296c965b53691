"""Uniform bounded samples of records for the models, independent of partitions; records dropped by the domain are
excluded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from dpscale.counting.cover import Program, plan_cover
from dpscale.domain import Domain
from dpscale.engine.schedulers import LocalEngine
from dpscale.evaluation.inputs import ComparedTable, number_partitions, sample
from dpscale.evaluation.marginals import count_ways
from dpscale.records import Table
from dpscale.records.origin import stamps

DOMAIN = Domain.from_dict({"attributes": {
    "number": {"kind": "integer", "low": 0, "high": 999},
    "kept": {"kind": "coded", "size": 2, "outside": "drop"},
}})  # fmt: skip


@pytest.fixture
def compared_table(tmp_path: Path) -> ComparedTable:
    """A thousand records numbered 0 … 999; every tenth is dropped because of its value in the other column."""
    numbers = np.arange(1000)
    frame = pd.DataFrame({"number": numbers, "kept": np.where(numbers % 10 == 0, 7, numbers % 2)})
    for part in range(5):
        frame.iloc[part::5].to_parquet(tmp_path / f"{part}.parquet")
    table = Table.open(tmp_path, DOMAIN)
    return ComparedTable("DATA", table, stamps(table))


def draw_sample(compared_table: ComparedTable, most: int, workers: int = 1, release: str = "r") -> np.ndarray:
    return sample(LocalEngine("threads", workers), compared_table, ["number"], most, release)[:, 0]


def test_sample_has_requested_size_without_dropped_records(compared_table: ComparedTable) -> None:
    found = draw_sample(compared_table, 300)
    assert len(found) == len(set(found.tolist())) == 300
    assert not (found % 10 == 0).any()
    assert sorted(draw_sample(compared_table, 5000).tolist()) == [number for number in range(1000) if number % 10]


def test_sample_does_not_depend_on_workers_or_size(compared_table: ComparedTable) -> None:
    assert draw_sample(compared_table, 300).tolist() == draw_sample(compared_table, 300, workers=4).tolist()
    assert draw_sample(compared_table, 300).tolist() == draw_sample(compared_table, 5000).tolist()[:300]
    assert draw_sample(compared_table, 300).tolist() != draw_sample(compared_table, 300, release="another").tolist()


def test_sample_is_uniform(compared_table: ComparedTable) -> None:
    hits = sum(int((draw_sample(compared_table, 90, release=f"r{k}") < 500).sum()) for k in range(30))
    assert binomtest(hits, 30 * 90, 0.5).pvalue > 1e-3


def test_sample_order_is_random(compared_table: ComparedTable) -> None:
    found = draw_sample(compared_table, 5000)
    assert abs(np.corrcoef(np.arange(900), found)[0, 1]) < 0.15
    assert found[:450].mean() == pytest.approx(found[450:].mean(), abs=100)


def test_dropped_records_are_not_counted(compared_table: ComparedTable) -> None:
    program = Program.of(plan_cover(DOMAIN, [("number",)], 1000))
    halves = count_ways(DOMAIN, program, number_partitions(compared_table, compared_table.table.partitions), 2, "r")
    assert (sum(halves) == (np.arange(1000) % 10 > 0)).all()
