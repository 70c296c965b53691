"""Search for codes of a public tree: the tree, its counts, the cells that are found, and faults of the file."""

import json

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.base.errors import DomainError
from dpscale.discovery.nodes import LeafCounts, read_tree
from dpscale.domain import Domain
from tests.discovery.small import write_frame
from tests.messages import refused

ROWS = [("A", "A0", "A01"), ("A", "A0", "A02"), ("A", "A1", "A11"), ("B", "B0", "B01"), ("B", None, "B9"),
        ("C", "C0", "C0")]  # fmt: skip


def write_tree(folder, rows=ROWS, name="tree.csv"):
    frame = pd.DataFrame(rows, columns=["chapter", "group", "code"])
    frame.to_csv(folder / name, index=False) if name.endswith("csv") else frame.to_parquet(folder / name)
    table = {"kind": "discover", "file": name, "levels": ["chapter", "group"]}
    (folder / "domain.toml").write_text(tomli_w.dumps({"attributes": {"code": table}}))
    return folder / "domain.toml"


@pytest.mark.parametrize("name", ["tree.csv", "tree.parquet"])
def test_tree_of_a_file(tmp_path, name):
    tree = read_tree(Domain.read(write_tree(tmp_path, name=name))["code"])
    assert tree.codes == ["A01", "A02", "A11", "B01", "B9", "C0"]
    assert tree.depth == 3
    tops = tree.children(0, 6, 1)
    assert [(one.code, one.start, one.end) for one in tops] == [("A", 0, 3), ("B", 3, 5), ("C", 5, 6)]
    assert [one.code for one in tree.children(3, 5, 2)] == ["B0", "B9"]
    assert [one.code for one in tree.children(5, 6, 2)] == ["C0"]
    assert tree.children(5, 6, 3) == []
    counts = LeafCounts(np.append(0, np.cumsum([1, 2, 3, 4, 5, 6])))
    assert counts.of(tops).tolist() == [6, 9, 6]


WRONG = {
    "twice": [*ROWS, ("B", "B0", "A01")],
    "ancestor": [*ROWS, ("D", "A0", "D01")],
    "leaf": [*ROWS, ("B", "B9", "B91")],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_trees(tmp_path, name):
    rows = WRONG[name]
    with refused(DomainError):
        read_tree(Domain.read(write_tree(tmp_path, rows))["code"])


def test_a_changed_file_is_refused(tmp_path):
    domain = Domain.read(write_tree(tmp_path))
    (tmp_path / "written.toml").write_text(tomli_w.dumps(domain.to_dict()))
    assert Domain.read(tmp_path / "written.toml") == domain
    (tmp_path / "tree.csv").write_text("chapter,group,code\nA,A0,A01\n")
    with refused(DomainError):
        Domain.read(tmp_path / "written.toml")


def test_found_codes_are_cells(tmp_path):
    rng = np.random.default_rng(0)
    codes = rng.choice(
        ["A01", "A02", "A11", "B01", "B9", "C0", "Z"], 20_000, p=[0.5, 0.2, 0.002, 0.2, 0.001, 0.05, 0.047]
    )
    job = {
        "data": {"path": str(write_frame(tmp_path, pd.DataFrame({"code": codes}), 3)),
                 "domain": str(write_tree(tmp_path))},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "ledger": str(tmp_path / "ledger.sqlite")},
        "workload": [{"family": "marginal", "attributes": [["code"]]}],
        "engine": {"seed": 1},
    }  # fmt: skip
    release = dp.run(job, run_dir=tmp_path / "run")
    attribute = release.domain["code"]
    groups = dict(zip(attribute.values, attribute.groups, strict=True))
    assert groups["A01"] == ("A01",)
    assert groups["A02"] == ("A02",)
    assert groups["A"] == ("A11",)
    assert set(groups) <= {"A", "A01", "A02", "A0", "B", "B0", "B01", "C", "C0"}
    counts = dict(zip(attribute.labels, release.marginal(["code"]), strict=True))
    assert abs(counts["A01"] - (codes == "A01").sum()) < 100
    assert abs(counts["(outside)"] - (codes == "Z").sum()) < 200
    found = json.loads((release.path / "domain/searches.json").read_text())["code"]["found"]
    assert {one["code"] for one in found} >= {"A", "A0", "A01", "A02", "B", "B0", "B01", "C"}


def test_leading_zeros_of_a_file_are_kept(tmp_path):
    tree = read_tree(Domain.read(write_tree(tmp_path, [("01", "011", "0111"), ("01", "012", "0121")]))["code"])
    assert tree.codes == ["0111", "0121"]
    assert [one.code for one in tree.children(0, 2, 1)] == ["01"]
