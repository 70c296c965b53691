"""The list of the papers' tables and figures in benchmarks/papers.py: complete, and every module prints its items."""

import importlib
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMED = {  # tables and figures that the benchmark has to print, by paper
    "hdmm": [*(f"table {i}" for i in range(3, 8)), "figure 2", "figure 3"],
    "query-smasher": [f"table {i}" for i in range(2, 9)],
    "aim-grem": ["table 2", *(f"figure {i}" for i in range(3, 12)), "AIM+PGM in all cells"],
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
    planted = (*papers.COVERAGE[1:], papers.Item("hdmm", "table 9", "hdmm"), papers.COVERAGE[1])
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


def test_modules_are_called_by_name_and_others_have_their_reason(papers, monkeypatch, capsys, tmp_path):
    (tmp_path / "paper_with_main.py").write_text("import sys\ndef main(): print('called', *sys.argv)\n")
    (tmp_path / "paper_with_items.py").write_text(
        "def print_item(what, quick):\n    print('printed', what, quick)\n"
        "    return {what: 1.0} if what != 'figure 4' else open('absent.csv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = [("one", "table 1", "paper_with_main"), ("one", "table 2", "paper_with_main"),
            ("one", "figure 1", "paper_with_items", "coarser"), ("one", "figure 4", "paper_with_items"),
            ("one", "figure 2", "absent_module"),
            ("one", "figure 3", "", "its data are secret"), ("two", "figure 9", "paper_with_items")]  # fmt: skip
    monkeypatch.setattr(papers, "COVERAGE", [papers.Item(*row) for row in rows])
    saved = {}
    monkeypatch.setattr(papers.base, "save", saved.__setitem__)
    papers.run_paper("one", False, False, [], True)
    shown = capsys.readouterr().out
    assert shown.count("called paper_with_main.py --save") == 1
    assert "figure 1 (coarser)\nprinted figure 1 False" in shown
    assert "not reproduced: absent.csv is not there" in shown
    assert "absent_module.py is not in this version" in shown
    assert "figure 3 is not reproduced: its data are secret" in shown
    assert "figure 9" not in shown
    assert saved == {"paper_with_items": {"figure 1": 1.0}}
