"""Hierarchies of nested parents, and public trees in jobs, runs and evidence."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import bundle
from dpscale.audit.evidence.check import check_bundle
from dpscale.counting import count_marginals
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.domain.hierarchy import hierarchies_of
from dpscale.domain.rules import FunctionalDependency, restored
from dpscale.records.origin import Origin
from dpscale.records.where import read_where
from dpscale.runs.opening import open_run
from tests.messages import refused

TOWNS = {"kind": "categories", "values": ["a", "b", "c", "d", "e", "f"]}
PASSED = [{"name": "one", "passed": True, "detail": "as it should"}]
REGION = {"r1": ["a", "b"], "r2": ["c"], "r3": ["d", "e", "f"]}
COUNTRY = {"X": ["a", "b", "d", "e", "f"], "Y": ["c"]}
COAST = {"wet": ["a", "c"], "dry": ["b", "d", "e", "f"]}


def of_towns(parents, **options):
    return Domain.from_dict(
        {"attributes": {"town": {**TOWNS, **options, "parent": parents}, "sex": {"kind": "boolean"}}}
    )


def test_nested_parents_are_one_hierarchy():
    for parents in ({"region": REGION, "country": COUNTRY}, {"country": COUNTRY, "region": REGION}):
        domain = of_towns(parents)
        [found] = domain.hierarchies
        assert found.names == ("country", "region", "town")
        assert [one.tolist() for one in found.tree.parents[1:]] == [[0, 1, 0], [0, 0, 1, 2, 2, 2]]
        assert found.ancestors("country").tolist() == [0, 0, 1, 0, 0, 0]
        assert found.ancestors("town").tolist() == [0, 1, 2, 3, 4, 5]
        assert domain.hierarchy_of("sex") is None
        assert domain.names == ("town", *parents, "sex")
    with refused(dp.DomainError):
        found.position("sex")


def test_single_parent_is_a_hierarchy_with_additional_cells():
    [found] = of_towns({"region": REGION}, outside="category", nulls="category").hierarchies
    assert found.names == ("region", "town")
    assert found.tree.parents[1].tolist() == [0, 0, 1, 2, 2, 2, 3, 4]
    assert found.sizes == (5, 8)


def test_longest_nested_chain_is_the_hierarchy():
    domain = of_towns({"coast": COAST, "region": REGION, "country": COUNTRY})
    assert [one.names for one in domain.hierarchies] == [("country", "region", "town")]
    assert domain.hierarchy_of("coast") is None
    assert [one.names for one in of_towns({"coast": COAST, "country": COUNTRY}).hierarchies] == [("coast", "town")]
    assert Domain({"a": 3, "b": 4}).hierarchies == ()


def test_cells_without_a_leaf_are_no_level():
    attributes = {"town": TOWNS, "area": {"kind": "categories", "from": "town", "map": {**REGION, "r4": ["z"]}}}
    assert Domain.from_dict({"attributes": attributes}).hierarchies == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4))
def test_chain_is_the_longest_by_enumeration(partitions):
    from itertools import combinations

    codes = [np.unique(one, return_inverse=True)[1].tolist() for one in partitions]
    values = tuple(range(6))
    attributes = [Attribute("x", "categories", values=values)]
    for number, one in enumerate(codes):
        groups = tuple(tuple(v for v in values if one[v] == g) for g in range(max(one) + 1))
        attributes.append(Attribute(f"p{number}", "categories", values=tuple(map(str, range(len(groups)))),
                                    groups=groups, source="x"))  # fmt: skip
    [found] = hierarchies_of(attributes)
    for upper, lower, parent in zip(found.names, found.names[1:], found.tree.parents[1:], strict=False):
        fine = list(range(6)) if lower == "x" else codes[int(lower[1:])]
        assert [int(parent[cell]) for cell in fine] == codes[int(upper[1:])]
        assert len({(a, b) for a, b in zip(fine, codes[int(upper[1:])], strict=True)}) == max(fine) + 1

    def comparable(i, j):
        pairs = set(zip(codes[i], codes[j], strict=True))
        return len(pairs) in (max(codes[i]) + 1, max(codes[j]) + 1)

    longest = max(size for size in range(1, len(codes) + 1) for chosen in combinations(range(len(codes)), size)
                  if all(comparable(i, j) for i, j in combinations(chosen, 2)))  # fmt: skip
    assert found.depth == longest + 1


def test_dependency_is_compared_by_content():
    one = FunctionalDependency("a", "b", (0, 1, 1))
    same = FunctionalDependency("a", "b", np.array([0, 1, 1]))
    assert (one, hash(one)) == (same, hash(same))
    assert one != FunctionalDependency("a", "b", (0, 1, 0))
    assert one != FunctionalDependency("a", "c", (0, 1, 1))
    assert restored(json.loads(json.dumps(one.to_dict()))) == one


PLACES = [("AT", "Wien", "1010"), ("AT", "Wien", "1020"), ("AT", "Tirol", "6020"), ("NA", "Khomas", "10001"),
          ("SG", "", "01")]  # fmt: skip


def inputs(folder, key="leaf"):
    """Job over a table of places, whose domain file has a hierarchy beside it."""
    places = pd.DataFrame(PLACES, columns=["country", "region", "place"])
    places.to_csv(folder / "places.csv", index=False)
    place = {
        "kind": "hierarchy",
        "file": "places.csv",
        "levels": ["country", "region"],
        "nulls": "category",
        "key": key,
    }
    attributes = {"place": place, "sex": {"kind": "coded", "size": 2}}
    (folder / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    rows = places.sample(3000, replace=True, random_state=1).reset_index(drop=True)
    rows["sex"] = np.random.default_rng(1).integers(0, 2, len(rows))
    (rows if key == "path" else rows[["place", "sex"]]).to_csv(folder / "rows.csv", index=False)
    job = {"data": {"path": str(folder / "rows.csv"), "domain": str(folder / "domain.toml")},
           "privacy": {"epsilon": 5, "delta": 1e-9},
           "workload": [{"family": "marginal", "degree": 1}, {"family": "marginal", "attributes": [["region", "sex"]]}],
           "engine": {"seed": 1}}  # fmt: skip
    return job, rows


@pytest.mark.parametrize("key", ["leaf", "path"])
def test_run_is_readable_without_the_file(tmp_path, key):
    job, rows = inputs(tmp_path, key)
    release = dp.run(job, tmp_path / "run")
    (tmp_path / "places.csv").unlink()
    (tmp_path / "domain.toml").unlink()
    copy = dp.Release.open(tmp_path / "run")
    found = copy.table(["country"]).set_index("country")["estimate"]
    wanted = rows.groupby("country").size()
    assert (found.reindex(wanted.index) - wanted).abs().max() < 60
    regions = copy.table(["region", "sex"])
    assert set(regions["region"]) == {"Wien", "Tirol", "Khomas", "01", "(missing)"}
    assert release.path == copy.path
    assert [file.name for file in (tmp_path / "run").glob("hierarchy-*")] != []


def test_evidence_and_rows_of_a_hierarchy(tmp_path):
    job, _ = inputs(tmp_path)
    dp.run({**job, "synthesize": {}}, tmp_path / "run")
    written = pd.concat(map(pd.read_parquet, sorted((tmp_path / "run" / "synthetic").glob("*.parquet"))))
    known = {(place, region or place, country) for country, region, place in PLACES}
    assert set(written[["place", "region", "country"]].dropna().itertuples(index=False, name=None)) <= known
    folder = bundle.write_bundle(open_run(tmp_path / "run"), PASSED, None)
    assert check_bundle(folder)["unverified"]  # raises an error at the first failed check


def test_check_command_lists_levels_and_faults(tmp_path):
    inputs(tmp_path, "path")
    run = CliRunner().invoke(main, ["check", "domain", str(tmp_path / "domain.toml"), "--json"])
    assert [one["cells"] for one in json.loads(run.output)["attributes"]] == [6, 4, 5, 2]
    pd.DataFrame([["AT", "Wien", "1030", 0], ["AT", "Wien", "1010", 1]],
                 columns=["country", "region", "place", "sex"]).to_csv(tmp_path / "rows.csv", index=False)  # fmt: skip
    run = CliRunner().invoke(main, ["check", "domain", str(tmp_path / "domain.toml"), str(tmp_path / "rows.csv"),
                                    "--scheduler", "threads"])  # fmt: skip
    assert "AT/Wien/1030" in run.output
    assert "values outside the domain, in 1 row" in run.output


@pytest.mark.parametrize("made", [lambda rows: rows, lambda rows: pa.Table.from_pandas(rows, preserve_index=False)])
def test_frames_and_files_have_the_same_counts(tmp_path, made):
    job, rows = inputs(tmp_path, "path")
    domain = Domain.read(tmp_path / "domain.toml")
    sets = [("country",), ("region", "sex"), ("place",)]
    table = Origin().table(str(tmp_path / "rows.csv"), domain)
    pq.write_table(pa.Table.from_pandas(rows), tmp_path / "rows.parquet")
    copy = Origin().table(str(tmp_path / "rows.parquet"), domain)
    counts = count_marginals(table, sets)
    wanted = rows.assign(region=rows["region"].where(rows["region"] != "", rows["place"])).groupby(["region", "sex"])
    for (region, sex), count in wanted.size().items():
        assert counts["region", "sex"][domain["region"].cell_of[region], sex] == count
    for one in sets:
        assert counts[one].tolist() == count_marginals(copy, sets)[one].tolist()
    del job["data"]["path"]
    job["privacy"] |= {"dataset": "places", "ledger": str(tmp_path / "ledger.sqlite")}
    release = dp.run(job, tmp_path / "run", data=made(rows))
    own = release.table(["place"]).set_index("place")["estimate"]
    assert own.sum() == pytest.approx(len(rows), abs=200)


def test_filter_reads_the_columns_of_a_path(tmp_path):
    _, rows = inputs(tmp_path, "path")
    domain = Domain.read(tmp_path / "domain.toml")
    table = Origin(where=read_where("country = 'AT'")).table(str(tmp_path / "rows.csv"), domain)
    assert count_marginals(table, [("country",)])["country",].sum() == (rows["country"] == "AT").sum()


def test_hierarchy_in_a_job_of_two_tables(tmp_path):
    _, rows = inputs(tmp_path)
    rows[["place", "sex"]].assign(id=range(len(rows))).to_csv(tmp_path / "people.csv", index=False)
    visits = pd.DataFrame({"person": range(0, len(rows), 2), "kind": 0})
    visits.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "visits.toml").write_text('attributes.kind = {kind = "coded", size = 2}')
    domain = str(tmp_path / "domain.toml")
    job = {"tables": {"people": {"path": str(tmp_path / "people.csv"), "domain": domain, "key": "id",
                                 "workload": [{"family": "marginal", "degree": 1}]},
                      "visits": {"path": str(tmp_path / "visits.csv"), "domain": str(tmp_path / "visits.toml"),
                                 "workload": [{"family": "marginal", "degree": 1}]}},
           "link": [{"kind": "one-to-many", "parent": "people", "child": "visits", "child_key": "person",
                     "max_degree": 2}],
           "privacy": {"epsilon": 5, "delta": 1e-9}, "engine": {"seed": 1}}  # fmt: skip
    dp.run(job, tmp_path / "run")
    folder = bundle.write_bundle(open_run(tmp_path / "run"), PASSED, None)
    assert check_bundle(folder)["unverified"]
    copy = dp.Release.open(tmp_path / "run")
    assert set(copy.tables["people"].table(["country"])["country"]) == {"AT", "NA", "SG", "(missing)"}
