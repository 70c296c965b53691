"""The list of the papers' tables and figures in benchmarks/papers.py: complete, and every module prints its items."""

import importlib
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMED = {  # tables and figures that the benchmark has to print, by paper
    "hdmm": [*(f"table {i}" for i in range(3, 8)), "figure 2", "figure 3"],
    "query-smasher": [f"table {i}" for i in range(2, 9)],
    "aim-grem": ["table 2", *(f"figure {i}" for i in range(3, 12))],
    "eigen-design": ["figure 3", "figure 4", "figure 5", "table 2", "relative error on data", "example 4"],
    "relational": [f"figure {i}" for i in range(3, 8)],
}
WITHOUT_ITEMS = {"aim_grem"}  # its main prints the whole paper


@pytest.fixture
def papers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("papers")


def differences(coverage):
    """Return what is missing, what is not named, and what occurs more than once."""
    found = Counter((item.paper, item.what) for item in coverage)
    named = {(paper, what) for paper, items in NAMED.items() for what in items}
    return named - found.keys(), found.keys() - named, {one for one, count in found.items() if count > 1}


def test_every_table_and_figure_is_covered_once(papers):
    assert differences(papers.COVERAGE) == (set(), set(), set())
    assert tuple(NAMED) == papers.PAPERS


def test_missing_unknown_and_repeated_items_are_found(papers):
    planted = (*papers.COVERAGE[1:], papers.Item("hdmm", "table 9", "hdmm_paper"), papers.COVERAGE[1])
    missing, unknown, repeated = differences(planted)
    assert (missing, unknown, repeated) == ({("hdmm", "table 3")}, {("hdmm", "table 9")}, {("hdmm", "table 4")})


def test_item_has_a_module_or_a_reason(papers):
    for item in papers.COVERAGE:
        assert item.module or item.note, item
        assert not item.module or item.module in WITHOUT_ITEMS or (BENCHMARKS / f"{item.module}.py").exists(), item


def test_module_has_a_function_for_each_of_its_items(papers):
    for item in papers.COVERAGE:
        if item.module and item.module not in WITHOUT_ITEMS:
            assert item.what in importlib.import_module(item.module).ITEMS, item
