"""Errors of marginals of synthetic rows, against pandas value counts of labels."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from math import comb, prod
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpscale.counting.count import count_marginals
from dpscale.counting.cover import Program, plan_cover
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.domain.domain_schema import from_table
from dpscale.engine.schedulers import LocalEngine
from dpscale.evaluation import marginals as compared_sets
from dpscale.evaluation.inputs import (
    ComparedTable,
    codes_of,
    fold_counts,
    names_of,
    number_partitions,
    open_data,
    open_rows,
    row_attribute,
    size_of,
)
from dpscale.evaluation.marginals import (
    choose_sets,
    combination_at,
    compare_set,
    count_ways,
    score_all,
    summarise_by_degree,
)
from dpscale.privacy.streams import PublicStream
from dpscale.runs.opening import open_part
from dpscale.synthesis.decode import column
from tests.evaluation.small import make_frame

GIB = 1 << 30


def label_records(table: pd.DataFrame) -> pd.DataFrame:
    """Return records as labels of the domain: nulls and numbers outside the edges share one label, other texts have
    another.
    """
    return pd.DataFrame({
        "age": table.age.clip(0, 9).astype(int),
        "city": table.city.where(table.city.isin(["Forlì", "東京", "Ærø"]), "(outside)"),
        "income": pd.cut(table.income, [0, 100, 300, 1000.0001], right=False, labels=False).fillna(-1).astype(int),
        "code": table.code.astype(int),
        "ill": table.ill.fillna("?"),
    })  # fmt: skip


def cell_shares(table: pd.DataFrame, names: tuple[str, ...]) -> pd.Series:
    return table.value_counts(list(names), normalize=True)


def l1_distance(one: pd.Series, other: pd.Series) -> float:
    return float(one.sub(other, fill_value=0).abs().sum())


def open_tables(reference: Path) -> tuple[ComparedTable, ComparedTable]:
    run = open_part(reference / "run")
    rows = open_rows(run)
    return open_data(run, [str(reference / "data")], names_of(rows)), rows


def score_sets(reference: Path, memory: int = GIB, engine: str = "synchronous") -> dict[tuple[str, ...], object]:
    data, rows = open_tables(reference)
    every = [one for degree in choose_sets(rows.domain, names_of(rows), "r").values() for one in degree.sets]
    return {one.attributes: one for one in score_all(LocalEngine(engine), data, rows, every, memory, "r")}


def test_scores_equal_brute_force(reference: Path) -> None:
    data, drawn = label_records(make_frame()), label_records(pd.read_parquet(reference / "run/synthetic"))
    found = score_sets(reference)
    assert len(found) == 5 + 10 + 10
    for names, one in found.items():
        assert one.rows == pytest.approx(l1_distance(cell_shares(data, names), cell_shares(drawn, names)), abs=1e-12)
        ones = [data[name].value_counts(normalize=True) for name in names]
        joint = {
            cell: n / len(data) for cell, n in Counter(data[list(names)].itertuples(index=False, name=None)).items()
        }
        cells = product(*(own.index for own in ones))
        away = sum(abs(prod(own[x] for own, x in zip(ones, cell, strict=True)) - joint.get(cell, 0)) for cell in cells)
        assert one.independent == pytest.approx(away, abs=1e-12)


@pytest.mark.parametrize(("memory", "engine"), [(1 << 16, "synchronous"), (GIB, "threads")])
def test_memory_and_scheduler_do_not_change_scores(reference: Path, memory: int, engine: str) -> None:
    assert repr(score_sets(reference, memory, engine)) == repr(score_sets(reference))  # nan is not nan


def test_random_halves_sum_to_counts(reference: Path) -> None:
    data, _ = open_tables(reference)
    names = ("age", "ill")
    program = Program.of(plan_cover(data.domain, [names], 3000))
    halves = count_ways(data.domain, program, number_partitions(data, data.table.partitions), 2, "r")
    whole = count_marginals(data.table, [names])[names]
    assert (sum(halves) == whole.ravel()).all()
    assert [half.sum() for half in halves] == pytest.approx([1500, 1500], abs=5 * np.sqrt(750))
    again = count_ways(data.domain, program, number_partitions(data, data.table.partitions), 2, "r")
    assert all((one == other).all() for one, other in zip(halves, again, strict=True))


def test_compare_set_equals_values_by_hand() -> None:
    one = compare_set(("a",), np.array([3, 1]), np.array([1, 3]), np.array([9, 3]))
    assert (one.rows, one.independent, one.halves) == (0.5, 0.0, 1.0)
    none = compare_set(("a",), np.array([3, 1]), np.array([0, 0]), np.array([0, 0]))
    assert np.isnan([none.rows, none.halves]).all()


def test_summary_has_mean_maximum_and_worst_set_by_degree(reference: Path) -> None:
    _, rows = open_tables(reference)
    found = list(score_sets(reference).values())
    summary = summarise_by_degree(found, choose_sets(rows.domain, names_of(rows), "r"))
    pairs = [one for one in found if len(one.attributes) == 2]
    assert summary["2"]["mean"] == pytest.approx(sum(one.rows for one in pairs) / 10)
    assert summary["2"]["max"] == max(one.rows for one in pairs)
    assert summary["2"]["worst"][0]["attributes"] == list(max(pairs, key=lambda one: one.rows).attributes)
    assert summary["1"]["independent"] == pytest.approx(0)


def test_choose_sets_samples_reproducibly_above_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain({f"x{i:02}": 2 for i in range(30)})
    found = choose_sets(domain, domain.names, "r")
    assert [len(one.sets) for one in found.values()] == [30, comb(30, 2), compared_sets.MOST]
    assert set(found[2].sets) == set(combinations(domain.names, 2))
    assert len(set(found[3].sets)) == compared_sets.MOST
    assert found == choose_sets(domain, domain.names, "r")
    assert found[3] != choose_sets(domain, domain.names, "another")[3]
    monkeypatch.setattr(compared_sets, "MOST_CELLS", 4)
    assert choose_sets(domain, domain.names, "r")[3].too_large == compared_sets.MOST


def test_float32_rounding_does_not_move_rows_out_of_bin() -> None:
    """With `types = "input"` values are rounded to 32 bits, and the nearest such number to 0.7 is below it."""
    import pyarrow as pa

    attribute = from_table("a", {"kind": "bins", "edges": [0.7, 0.8, 0.9000000000001]})
    values = pa.array([0.7, 0.85, np.float32(0.9) + np.float32(1e-7)], pa.float32())
    codes, _ = codes_of(Domain([row_attribute(attribute)]), {"a": values}, ["a"])
    assert codes[:, 0].tolist() == [0, 1, 1]


POLICIES = [
    {"kind": kind} | more | {"outside": outside} | ({"nulls": nulls} if nulls else {})
    for kind, more in (("integer", {"low": -2, "high": 3}), ("bins", {"edges": [0.1, 0.7, 5]}), ("coded", {"size": 4}),
                       ("categories", {"values": ["x", "y"]}), ("categories", {"values": [1.5, 7]}))
    for outside in ("reject", "clip", "category", "drop") if not (kind == "categories" and outside == "clip")
    for nulls in ("", "category", "drop")
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(map(str, policy.values())))
@pytest.mark.parametrize("kind", ["", "float"])
def test_rows_are_encoded_into_cells_they_were_drawn_from(policy: dict[str, object], kind: str) -> None:
    """For every policy; a type with fewer digits moves no value out of the domain."""
    import pyarrow as pa

    attribute: Attribute = from_table("a", policy)
    cells = np.repeat(np.arange(attribute.size, dtype=np.int32), 20)
    values = column(attribute, cells, PublicStream("r", "values"), pa.float32() if kind else None)
    domain = Domain([row_attribute(attribute)])
    codes, valid = codes_of(domain, {"a": values}, ["a"])
    assert valid.all()
    wanted = np.minimum(cells, size_of(attribute) - 1)
    assert size_of(domain["a"]) == size_of(attribute)
    assert (codes[:, 0] == wanted).mean() == 1 if not kind or attribute.kind != "bins" else True
    counts = np.bincount(cells, minlength=attribute.size)
    assert fold_counts(counts, [attribute]).tolist() == np.bincount(wanted, minlength=size_of(attribute)).tolist()


@pytest.mark.parametrize(("count", "degree"), [(5, 1), (6, 2), (7, 3), (3, 3), (4, 5)])
def test_combination_at_equals_itertools(count: int, degree: int) -> None:
    every = list(combinations(range(count), degree))
    assert [combination_at(number, count, degree) for number in range(len(every))] == every
    assert len(every) == comb(count, degree)
