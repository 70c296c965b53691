"""Exact counts on the cells of numbers against fractions, for joints, separate sets, nulls and several numbers."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.counting import cover as covers, cover as program
from dpscale.counting.count import Packing
from dpscale.counting.cover import Program, plan_cover
from dpscale.domain import Domain
from tests.messages import refused
from tests.numbers.small import NUMBERS, exact_sums, make_domain, make_frame, make_table

SETS = [("a", "pay"), ("a", "b", "pay"), ("pay",), ("b", "wait"), ("a", "b", "wait"), ("wait",), ("a", "b"), ()]


def count_by_loops(monkeypatch):
    """Count few rows by covers and compiled loops too."""
    for module in (covers, program):
        monkeypatch.setattr(module, "FEW", 0)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("squares", [False, True])
def test_counts_give_exact_sums(tmp_path, monkeypatch, squares, loops):
    if loops:
        count_by_loops(monkeypatch)
    domain, frame = make_domain(), make_frame()
    domain = domain.with_squares(NUMBERS) if squares else domain
    counts = dp.count_marginals(make_table(tmp_path / "data", frame, domain), SETS)
    for names in SETS:
        if not names or names[-1] not in NUMBERS:
            continue
        *by, name = names
        number, found = domain[name], counts[names]
        assert (found.sum(axis=-1) == number.denominator * counts.get(tuple(by), _rows(frame, by))).all()
        sums = found @ number.cell_values / number.denominator
        np.testing.assert_allclose(sums, exact_sums(frame, by, name, NUMBERS[name]), rtol=1e-12)
        if squares:
            centre = sum(number.ends) / 2
            scaled = (found[..., 0] + found[..., 3]) / number.denominator * number.half_range**2
            records = found[..., :4].sum(axis=-1) / number.denominator
            squares_of = exact_sums(frame, by, name, NUMBERS[name], 2)
            expected = squares_of - 2 * centre * sums + centre**2 * records
            np.testing.assert_allclose(scaled, expected, rtol=1e-9, atol=1e-9)


def _rows(frame: pd.DataFrame, by: list[str]) -> np.ndarray:
    return np.asarray(len(frame) if not by else frame.groupby(by).size().unstack(fill_value=0).to_numpy()
                      if len(by) > 1 else frame.groupby(by).size().to_numpy())  # fmt: skip


def test_several_numbers_multiply_their_parts(tmp_path):
    domain, frame = make_domain(), make_frame()
    found = dp.count_marginals(make_table(tmp_path / "data", frame, domain), [("a", "pay", "wait"), ("a", "pay")])
    whole = domain["wait"].denominator
    assert (found[("a", "pay", "wait")].sum(axis=-1) == whole * found[("a", "pay")]).all()
    pay, wait = domain["pay"], domain["wait"]
    products = np.einsum("aij,i,j->a", found[("a", "pay", "wait")], pay.cell_values, wait.cell_values)
    values = frame.assign(pay=frame.pay.clip(-20, 100), wait=np.floor(frame.wait.clip(0, 3) * 4 + 0.5) / 4)
    expected = (values.pay * values.wait).groupby(values.a).sum()
    np.testing.assert_allclose(products / pay.denominator / whole, expected, rtol=1e-12)


@pytest.mark.parametrize("nulls", ["skip", "zero"])
def test_words_of_joints_are_emptied_before_they_overflow(tmp_path, monkeypatch, nulls):
    """Fields for few rows, which overflow into each other unless words are emptied many times."""
    from dpscale.counting import count as sums

    monkeypatch.setattr(sums, "WORD", 24)
    monkeypatch.setattr(sums, "FEWEST", 1)
    count_by_loops(monkeypatch)
    numbers = {"v": {"low": 0, "high": 50, "nulls": nulls}}
    sizes = {f"x{i}": {"kind": "coded", "size": 3} for i in range(3)}
    domain = Domain.from_dict({"attributes": sizes, "numbers": numbers})
    random = np.random.default_rng(3)
    frame = pd.DataFrame({name: random.integers(0, 3, 40_000) for name in sizes})
    frame["v"] = np.where(random.random(40_000) < 0.3, np.nan, random.integers(40, 60, 40_000))
    sets = [(*names, "v") for names in combinations(sizes, 2)]
    assert all(own.joints for own in Program.of(plan_cover(domain, sets, rows=40_000)).sums)
    counts = dp.count_marginals(make_table(tmp_path / "data", frame, domain), sets)
    values = frame.assign(v=frame.v.clip(0, 50), n=frame.v.isna())
    for names in sets:
        groups = values.groupby(list(names[:-1]))
        np.testing.assert_array_equal(counts[names][..., 1].reshape(-1), groups.v.sum())
        assert (counts[names].sum(axis=-1).reshape(-1) == 50 * groups.size()).all()
        if nulls == "skip":
            np.testing.assert_array_equal(counts[names][..., 2].reshape(-1), 50 * groups.n.sum())


@pytest.mark.parametrize("nulls", ["skip", "zero"])
@pytest.mark.parametrize("high", [1, 50, 1 << 20])
def test_a_word_counts_no_more_rows_than_its_fields_hold(high, nulls):
    number = make_domain({"v": {"low": 0, "high": high, "nulls": nulls}})["v"]
    packing = Packing(number)

    def counted(rows):
        word, counts = rows * int(packing.words(np.array([high]))[0]), np.zeros((1, number.size), np.int64)
        packing.unpack(np.array([word % 2**64], np.uint64), counts)
        return counts[0, :2].tolist()

    assert counted(packing.most) == [0, high * packing.most]
    assert counted(packing.most + 1) != [0, high * (packing.most + 1)]


def test_joints_and_separate_sets_agree(tmp_path, monkeypatch):
    """Many sets of one number share a joint table."""
    count_by_loops(monkeypatch)
    sizes = {f"x{i}": {"kind": "coded", "size": 3} for i in range(6)}
    domain = Domain.from_dict({"attributes": sizes, "numbers": {"v": {"low": 0, "high": 50}}})
    random = np.random.default_rng(3)
    frame = pd.DataFrame({name: random.integers(0, 3, 5000) for name in sizes} | {"v": random.integers(-5, 60, 5000)})
    table = make_table(tmp_path / "data", frame, domain)
    sets = [(*names, "v") for names in combinations(sizes, 3)] + list(combinations(sizes, 2))
    cover = plan_cover(domain, sets, rows=5000)
    assert any(joint[-1] == "v" for joint in cover.joints)
    assert sum(bool(own.joints) for own in Program.of(cover).sums) == 1
    together = dp.count_marginals(table, sets)
    for names in sets[::7]:
        np.testing.assert_array_equal(together[names], dp.count_marginals(table, [names])[names])
        if names[-1] == "v":
            expected = frame.assign(v=frame.v.clip(0, 50)).groupby(list(names[:-1])).v.sum()
            np.testing.assert_array_equal(together[names][..., 1].reshape(-1), expected.to_numpy())


def test_set_of_a_number_alone_is_counted_once_beside_joints(tmp_path):
    domain = Domain.from_dict({"attributes": {name: {"kind": "coded", "size": 3} for name in "abc"},
                               "numbers": {"v": {"low": 0, "high": 10}}})  # fmt: skip
    frame = pd.DataFrame({"a": [0] * 10, "b": [0] * 10, "c": [0] * 10, "v": [10] * 10})
    sets = [("a", "v"), ("b", "v"), ("v",)]
    counts = dp.count_marginals(make_table(tmp_path / "data", frame, domain), sets)
    assert [int(counts[names][..., 1].sum()) for names in sets] == [100, 100, 100]


def test_large_numbers_are_exact_on_every_path(tmp_path):
    """Values from 2^52 on: integers, floats, texts and dictionaries."""
    low = 1 << 52
    domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2}},
                               "numbers": {"v": {"low": low, "high": low + 10}}})  # fmt: skip
    values = [low + step for step in (1, 3, 5, 7, 2, 4)] * 20
    whole = pd.DataFrame({"a": [0, 1] * 60, "v": values})
    expected = [
        [sum(10 - v + low for v in values[place::2]), sum(v - low for v in values[place::2])] for place in (0, 1)
    ]
    for number, frame in enumerate((whole, whole.assign(v=whole.v.astype(float)), whole.assign(v=whole.v.astype(str)),
                                    whole.assign(v=whole.v.astype("category")))):  # fmt: skip
        counts = dp.count_marginals(make_table(tmp_path / f"data{number}", frame, domain), [("a", "v")])
        assert counts["a", "v"].tolist() == expected


def test_several_numbers_of_many_steps_are_refused(tmp_path):
    numbers = {name: {"low": 0, "high": 1_000_000} for name in ("v", "w")}
    domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2}}, "numbers": numbers})
    table = make_table(tmp_path / "data", pd.DataFrame({"a": [0], "v": [1], "w": [2]}), domain, files=1)
    with refused(dp.DomainError):
        dp.count_marginals(table, [("v", "w")])
