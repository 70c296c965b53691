"""Figures of docs/benchmarks.md: each one is generated from a file under benchmarks/results."""

import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"


@pytest.fixture
def tables(monkeypatch):
    """The generator module, imported from benchmarks."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import tables

    return tables


@pytest.fixture
def figures(tables, tmp_path, monkeypatch):
    """The tracked figures, copied to a temporary directory."""
    import base

    monkeypatch.setattr(base, "FOLDER", shutil.copytree(base.FOLDER, tmp_path / "results"))
    return base


def test_page_equals_generated_page(tables):
    assert tables.fill_blocks(PAGE.read_text()) == PAGE.read_text()
    answers = PAGE.with_name("answers.md").read_text()
    assert tables.fill_statistics(answers) == answers
    assert "<!-- statistics -->" in answers


def test_benchmarks_results_and_blocks_correspond(tables):
    blocks = [name for _, name, _ in tables.BLOCK.findall(PAGE.read_text())]
    results = {path.stem for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert sorted(blocks) == sorted(results) == sorted(tables.BLOCKS)
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "tables"]
    named = {path.stem for path in scripts} | {f"{path.stem}_paper" for path in scripts}
    texts = "".join(path.read_text() for path in scripts)
    assert all(name in named or f'"{name}"' in texts for name in results)


def test_sections_have_no_handwritten_figure(tables):
    for title in ("Measured", "The papers"):
        section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        assert not re.search(r"\d", tables.BLOCK.sub("", section))


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "benchmarks/results").glob("*.json"))])
def test_changed_figure_changes_page(tables, figures, name):
    """The page has the blocks of `fill_blocks` (`test_page_equals_generated_page`), so each block is tried alone."""
    found = {other: figures.load(other) for other in ("conclusions", "intervals")} | {name: figures.load(name)}
    meant = {("main_job", "bincount"), ("noise", "sigma 2^30")}  # 1 by their meaning

    def texts(changed):
        return tables.BLOCKS[name](changed[name]), tables.releases.statistics_table(
            changed["conclusions"], changed["intervals"]
        )

    shown, unseen = texts(found), []
    for key, value in found[name].items():
        other = "3GiB" if isinstance(value, str) else 3.3 * value + 2
        if texts(found | {name: found[name] | {key: other}}) == shown and (name, key) not in meant:
            unseen.append(key)
    assert unseen == []
    assert json.loads(figures.result_path(name).read_text())["run"]


def test_incomplete_results_are_not_saved(figures):
    found = figures.load("noise")
    with pytest.raises(SystemExit, match="no figure for numpy"):
        figures.save("noise", {key: value for key, value in found.items() if key != "numpy"})
    assert figures.load("noise") == found
    figures.save("noise", found | {"numpy": 0.123456789, "more": 2.0})
    assert figures.load("noise") == found | {"numpy": 0.123457, "more": 2.0}


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(14.69, 3, "14.7"), (413.2, 3, "413"), (1002.4, 4, "1,002"), (14.0, 3, "14.0"), (0.0009, 1, "0.0009"),
     (1.0, 3, "1")],
)  # fmt: skip
def test_rounding_to_significant_digits(figures, value, digits, text):
    assert figures.significant(value, digits) == text
