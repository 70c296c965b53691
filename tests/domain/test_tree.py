"""Hierarchies read from public files, against brute force with pandas, and files that are refused."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.base.errors import DataError, DomainError
from dpscale.domain import Domain
from dpscale.domain.tree import UNSPECIFIED, build_tree
from dpscale.records.column_values import column_of
from dpscale.records.encode import encode
from tests.messages import refused
from tests.real_data import DATA, needs_real_data

PLACES = [
    ("AT", "Wien", "1010"),
    ("AT", "Wien", "1020"),
    ("AT", "Tirol", "6020"),
    ("NA", "Khomas", "10001"),
    ("SG", None, "01"),
    ("XK", "", "10000"),
]


def write(folder, rows, columns=("country", "region", "place"), kind="csv"):
    """File of a tree."""
    frame, path = pd.DataFrame(rows, columns=list(columns), dtype=object), folder / f"places.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return path


def read(path, leaf="place", levels=("country", "region"), **options):
    table = {"kind": "hierarchy", "file": str(path), "levels": list(levels), **options}
    return Domain.from_dict({"attributes": {leaf: table}})


def filled(rows):
    """Path of each leaf with the next name below, and the places of missing names, for every missing name."""
    found = []
    for row in rows:
        row, whole = [one or None for one in row], []
        for level in range(len(row)):
            end = next((at for at in range(level, len(row)) if row[at] is not None), len(row) - 1)
            whole.append(tuple(row[: end + 1]))
        found.append(whole)
    return found


def partition(values):
    """Sets of the places of equal values."""
    return {frozenset(group) for group in pd.Series(range(len(values))).groupby([str(one) for one in values]).agg(list)}


def refuse(path, sentence, **options):
    with pytest.raises(DomainError) as found:
        read(path, **options)
    assert re.sub(r"\S*/places", "places", str(found.value)) == sentence


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_levels_are_attributes_after_the_leaf(tmp_path, kind):
    domain = read(write(tmp_path, PLACES, kind=kind))
    assert domain.names == ("place", "country", "region")
    assert domain["place"].labels == ["6020", "1010", "1020", "10001", "01", "10000"]  # sorted by path
    assert domain["country"].labels == ["AT", "NA", "SG", "XK"]  # "NA" is a text
    assert domain["region"].labels == ["Tirol", "Wien", "Khomas", "01", "10000"]  # a missing level is the leaf
    assert domain["region"].columns == domain["place"].columns == ("place",)
    [tree] = domain.hierarchies
    assert tree.names == ("country", "region", "place")
    assert (tree.leaf, tree.depth, tree.sizes, tree.position("region")) == ("place", 3, (4, 5, 6), 1)
    assert domain.hierarchy_of("region") is tree
    paths = {labels: tuple(domain[name].labels[tree.ancestors(name)[cell]] for name in tree.names)
             for cell, labels in enumerate(domain["place"].labels)}  # fmt: skip
    assert paths["1020"] == ("AT", "Wien", "1020")
    assert paths["01"] == ("SG", "01", "01")


NAMES = st.sampled_from(["A", "B", "C", "D/E", "é", "", None])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tree_equals_groups_of_paths(data):
    depth = data.draw(st.integers(2, 4))
    rows = data.draw(st.lists(st.tuples(*[NAMES] * depth), min_size=2, max_size=20))
    columns = [f"c{level}" for level in range(depth)]
    texts = [pa.array([row[level] or None for row in rows], pa.large_string()) for level in range(depth)]
    clean = [tuple(one or None for one in row) for row in rows]
    unnamed = any(not any(row) for row in clean) or any(not any(row[i] for row in clean) for i in range(depth - 1))
    if unnamed or len(set(clean)) < 2:
        with pytest.raises(DomainError):
            build_tree("attributes.x", tuple(columns), texts, by_path=True)
        return
    tree = build_tree("attributes.x", tuple(columns), texts, by_path=True)
    distinct = sorted({tuple(one or None for one in row) for row in rows},
                      key=lambda row: [(one is not None, (one or "").encode()) for one in row])  # fmt: skip
    assert tree.codes.shape[1] == len(distinct)
    whole = filled(distinct)
    for level in range(depth):
        cells = tree.cells(level)
        assert partition(cells) == partition([path[level] for path in whole])
        assert (np.diff(cells) >= 0).all()
        labels = list(tree.labels(level))
        assert len(set(labels)) == len(labels) == cells.max() + 1
        names = [path[level][-1] or UNSPECIFIED for path in whole]
        nodes = pd.Series({cell: name for cell, name in zip(cells, names, strict=True)})
        for cell, name in nodes.items():
            if (nodes == name).sum() == 1 and name != UNSPECIFIED:
                assert labels[cell] == name
    for level in range(1, depth):
        upper, lower = tree.cells(level - 1), tree.cells(level)
        assert pd.Series(upper).groupby(lower).nunique().max() == 1


def test_repeated_names_are_nodes_of_their_own(tmp_path):
    rows = [("BO", "Santa Cruz", "x"), ("CR", "Santa Cruz", "y"), ("CR", "San Jose", "z")]
    domain = read(write(tmp_path, rows))
    assert domain["region"].labels == ["BO/Santa Cruz", "San Jose", "CR/Santa Cruz"]
    assert domain["country"].labels == ["BO", "CR"]


def test_missing_middle_and_top_levels(tmp_path):
    rows = [("A", "r", "d", "1"), ("A", None, "d", "2"), (None, "q", None, "3"), (None, None, None, "4")]
    domain = read(write(tmp_path, rows, ("a", "b", "c", "x")), "x", ("a", "b", "c"))
    [tree] = domain.hierarchies
    own = {label: tuple(domain[name].labels[tree.ancestors(name)[cell]] for name in tree.names)
           for cell, label in enumerate(domain["x"].labels)}  # fmt: skip
    assert own == {"1": ("A", "r", "A/r/d", "1"), "2": ("A", "d", "A/d", "2"), "3": ("q", "q", "3", "3"),
                   "4": ("4", "4", "4", "4")}  # fmt: skip


def test_additional_cells_are_nested(tmp_path):
    domain = read(write(tmp_path, PLACES), outside="category", nulls="category")
    assert [domain[name].labels[-2:] for name in domain.names] == [["(outside)", None]] * 3
    [own] = domain.hierarchies
    assert own.sizes == (6, 7, 8)
    for parents, lower, upper in zip(own.tree.parents[1:], own.sizes[1:], own.sizes, strict=False):
        assert parents[-2:].tolist() == [upper - 2, upper - 1]
        assert len(parents) == lower
    rules = {rule.names: rule.of for rule in domain.rules}
    assert set(rules) == {("place", "country"), ("place", "region"), ("region", "country")}
    assert rules["region", "country"].tolist() == own.tree.parents[1].tolist()
    assert rules["place", "country"].tolist() == own.ancestors("country").tolist()


def cells_of(domain, name, column):
    gone = np.zeros(len(column), bool)
    cells = encode(domain[name], column, gone).astype(int)
    return [None if dropped else domain[name].labels[cell] for cell, dropped in zip(cells, gone, strict=True)]


@pytest.mark.parametrize("made", [
    lambda values: pa.array(values),
    lambda values: pa.array(values, pa.large_string()).dictionary_encode(),
    lambda values: pa.chunked_array([pa.array(values[:2]), pa.array(values[2:], pa.string())]),
])  # fmt: skip
def test_values_of_every_policy(tmp_path, made):
    values = ["6020", "01", "1", None, "", "AT", "10001"]
    path = write(tmp_path, PLACES)
    domain = read(path, outside="category", nulls="category")
    wanted = ["AT", "SG", "(outside)", None, None, "(outside)", "NA"]
    assert cells_of(domain, "country", made(values)) == wanted
    dropping = read(path, outside="drop", nulls="drop")
    assert cells_of(dropping, "place", made(values)) == ["6020", "01", None, None, None, None, "10001"]
    with refused(DataError):
        encode(read(path, nulls="drop")["region"], made(values), np.zeros(len(values), bool))
    with refused(DataError):
        encode(read(path)["region"], made(["6020", None]))


def test_integers_are_names(tmp_path):
    pd.DataFrame({"region": ["a", "b", "b"], "place": [1, 2, 30]}).to_parquet(tmp_path / "places.parquet")
    domain = read(tmp_path / "places.parquet", levels=["region"])
    assert domain["place"].labels == ["1", "2", "30"]
    assert cells_of(domain, "region", pa.array([30, 1, 2], pa.int16())) == ["b", "a", "b"]
    with refused(DataError):
        encode(domain["place"], pa.array([1.0]))


def test_inner_nodes_have_unspecified_leaves(tmp_path):
    rows = [("AT", "Wien", "1010"), ("AT", None, "1020"), ("LU", "LU", "L1")]
    domain = read(write(tmp_path, rows), unspecified=True)
    values = ["1010", "AT", "Wien", "LU", "1020"]
    column = pa.array(values)
    assert cells_of(domain, "place", column) == [
        "1010", "AT/(unspecified)", "AT/Wien/(unspecified)", "LU/(unspecified)", "1020",
    ]  # fmt: skip
    assert cells_of(domain, "region", column) == ["Wien", "AT/(unspecified)", "Wien", "LU/(unspecified)", "1020"]
    assert cells_of(domain, "country", column) == ["AT", "AT", "AT", "LU", "AT"]
    assert domain["place"].size == 3 + 3  # the name LU states the country


BY_PATH = [("BO", "Santa Cruz", "Loma"), ("CR", "Santa Cruz", "Loma"), ("CR", None, "Loma"), ("CR", None, None),
           ("CR", "Santa Cruz", "Loma"), ("NA", "Khomas", "Aris")]  # fmt: skip


def test_leaf_by_path(tmp_path):
    domain = read(write(tmp_path, BY_PATH), key="path", outside="category", nulls="category")
    assert domain["place"].size == 5 + 2
    assert domain["place"].columns == ("country", "region", "place")
    assert domain.columns(["region"]) == ["country", "region", "place"]
    batch = {"country": pa.array(["BO", "CR", "CR", "CR", None, "BO", "NA"]),
             "region": pa.array(["Santa Cruz", "Santa Cruz", "", None, None, None, "Khomas"]).dictionary_encode(),
             "place": pa.array(["Loma", "Loma", "Loma", None, "", "Loma", None])}  # fmt: skip
    found = cells_of(domain, "place", column_of(domain["place"], batch))
    assert found == ["BO/Santa Cruz/Loma", "CR/Santa Cruz/Loma", "CR/Loma", "CR/(unspecified)", None, "(outside)",
                     "(outside)"]  # fmt: skip
    every = read(write(tmp_path, BY_PATH), key="path", outside="category", nulls="category", unspecified=True)
    found = cells_of(every, "place", column_of(every["place"], batch))
    assert found[-1] == "NA/Khomas/(unspecified)"
    assert cells_of(every, "region", column_of(every["region"], batch))[3] == "CR/(unspecified)"


def test_wrong_files_are_refused_in_one_sentence(tmp_path):
    field = "attributes.place"
    refuse(
        write(tmp_path, [*PLACES, ("DE", "Wien", "1010")]),
        f"{field}.file: the leaf '1010' below 'AT/Wien' and 'DE/Wien'; expected one path for each leaf; remove one "
        'row, or set key = "path" if names repeat below different ancestors',
    )
    refuse(
        write(tmp_path, [("A", "B", "x"), ("B", "A", "y")]),
        f"{field}.file: a cycle, 'A' above 'B' above 'A'; expected names that are not above themselves; rename one,"
        ' or set key = "path" if names repeat below different ancestors',
    )
    refuse(
        write(tmp_path, [("A", "B", "A"), ("C", "D", "y")]),
        f"{field}.file: a cycle, 'A' above 'B' above 'A'; expected names that are not above themselves; rename one,"
        ' or set key = "path" if names repeat below different ancestors',
    )
    refuse(
        write(tmp_path, [("A", None, "x"), ("B", "", "y")]),
        f"{field}.levels: the column 'region' without any name; expected columns with names; leave it out",
    )
    refuse(
        write(tmp_path, [("A", "B", None), ("B", "C", "y")]),
        f"{field}.file: a row without a value of 'place'; expected a leaf in every row; fill it in, or set "
        'key = "path"',
    )
    refuse(write(tmp_path, [("A", "B", "x")]),
           f"{field}.file: 1 leaf; expected at least 2 leaves; omit the attribute")  # fmt: skip
    refuse(write(tmp_path, []), f"{field}.file: no rows; expected a row for each leaf; add them")
    refuse(
        write(tmp_path, PLACES),
        f"{field}.levels: no column 'land' in places.csv; expected country, region, place; name one of them",
        levels=["land", "region"],
    )
    refuse(
        tmp_path / "none" / "places.csv",
        f"{field}.file: cannot read places.csv (No such file or directory); expected the file of a hierarchy; "
        "check the path",
    )
    refuse(
        write(tmp_path, [("A", "X", "1"), ("B", "X", "2")]),
        f"{field}.unspecified: the name 'X' of two inner nodes; expected distinct names of nodes; rename one, or "
        'set key = "path"',
        unspecified=True,
    )


@pytest.mark.parametrize("options", [
    {"levels": []},
    {"levels": ["region", "region"]},
    {"levels": ["place"]},
    {"key": "id"},
    {"leaf": "town"},
    {"unspecified": 1},
    {"outside": "clip"},
    {"unparsable": "drop"},
    {"cells": [1, 2, 3]},
    {"sha256": "0"},
    {"parent": {}},
])  # fmt: skip
def test_wrong_options_are_refused(tmp_path, options):
    with refused(DomainError):
        read(write(tmp_path, PLACES), **options)


def test_domain_is_written_with_a_copy_of_its_tree(tmp_path):
    path = write(tmp_path, [*BY_PATH, ("CR", "", "b")])
    domain = read(path, key="path", unspecified=True, nulls="category")
    assert Domain.from_dict(domain.to_dict()) == domain
    assert Domain.from_dict(domain.to_dict()).digest == domain.digest
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in domain.to_files().items():
        (folder / name).write_bytes(content)
    path.unlink()
    copy = Domain.read(folder / "domain.toml")
    assert copy == domain
    assert hash(copy) == hash(domain)
    assert copy.digest == domain.digest
    assert [copy[name].labels for name in copy.names] == [domain[name].labels for name in domain.names]
    assert list(copy.to_files())[-1] == "domain.toml"
    assert copy.to_files() == domain.to_files()


def test_digest_covers_the_tree(tmp_path):
    first = read(write(tmp_path, PLACES)).digest
    assert read(write(tmp_path, PLACES[::-1])).digest == first  # the order of the rows is irrelevant
    changed = [("AT", "Tirol", "1010"), *PLACES[1:]]
    assert read(write(tmp_path, changed)).digest != first


COORDINATES = [(48.2, 16.4), (48.2, 16.4), (47.3, None), (-0.0, 17.1), (None, 103.9), (42.7, 21.2)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_coordinates_follow_the_leaves(tmp_path, kind):
    rows = [(*row, *own) for row, own in zip(PLACES, COORDINATES, strict=True)]
    path = write(tmp_path, rows, ("country", "region", "place", "lat", "lon"), kind)
    plain, domain = (read(path, unspecified=True, **own) for own in ({}, {"coordinates": ["lat", "lon"]}))
    tree = domain["place"].level.tree
    by_leaf = dict(zip(domain["place"].labels, tree.coordinates.T.tolist(), strict=True))
    for (_, _, place), own in zip(PLACES, COORDINATES, strict=True):
        assert np.array_equal(by_leaf[place], np.array(own, float), equal_nan=True)
    assert np.isnan(by_leaf["AT/(unspecified)"]).all()
    assert plain["place"].level.tree.digest != tree.digest
    assert plain["place"].level.tree.coordinates is None
    for name, content in domain.to_files("domain.toml").items():
        (tmp_path / name).write_bytes(content)
    again = Domain.read(tmp_path / "domain.toml")
    assert again == domain
    assert again.digest == domain.digest
    assert np.array_equal(again["place"].level.tree.coordinates, tree.coordinates, equal_nan=True)
    copied = pickle.loads(pickle.dumps(domain))["place"].level.tree
    assert np.array_equal(copied.coordinates, tree.coordinates, equal_nan=True)


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        (["lat"], 1),
        (["lat", "place"], 1),
        ([["lat"], "lon"], 1),
        ("lat", 1),
        (["lat", "lno"], 1),
        (["lat", "lon"], "west"),
        (["lon", "lat"], 120),
        (["lat", "lon"], float("inf")),
    ],
)
def test_wrong_coordinates_are_refused(tmp_path, columns, value):
    rows = [(*row, 10, value) for row in PLACES]
    path = write(tmp_path, rows, ("country", "region", "place", "lat", "lon"))
    with refused(DomainError) as found:
        read(path, coordinates=columns)
    assert str(found.value).startswith("attributes.place.coordinates")


@needs_real_data
def test_shared_places(tmp_path):
    file = DATA / "more" / "geo_cities1000.parquet"
    domain = read(file, "name", ("cc", "admin1", "admin2"), key="path", outside="category", nulls="category")
    frame = pd.read_parquet(file, columns=["cc", "admin1", "admin2", "name"])
    assert domain["name"].listed == len(frame.drop_duplicates())
    clean = frame.astype(object).where(frame.notna(), None)
    whole = filled(list(clean.itertuples(index=False)))
    sample = clean.sample(100_000, replace=True, random_state=1)
    batch = {name: pa.array(sample[name], pa.string()) for name in sample}
    for level, name in enumerate(("cc", "admin1", "admin2", "name")):
        paths = pd.Series([str(path[level]) for path in whole], index=clean.index)
        assert domain[name].listed == paths.nunique()
        cells = encode(domain[name], column_of(domain[name], batch))
        both = pd.DataFrame({"cell": cells, "path": paths[sample.index].to_numpy()}).drop_duplicates()
        assert both.cell.is_unique
        assert both.path.is_unique
        assert (cells < domain[name].listed).all()


@needs_real_data
def test_shared_codes():
    file, levels = DATA / "more" / "icd10cm_tree.parquet", [f"l{level}" for level in range(6)]
    domain = read(file, "code", levels)
    frame = pd.read_parquet(file).drop_duplicates("code").set_index("code")
    codes = frame.sample(100_000, replace=True, random_state=1).index
    for name in ("l0", "l1", "l3"):
        cells = encode(domain[name], pa.array(codes))
        labels = np.array(domain[name].labels, object)[cells]
        wanted = frame.loc[codes, name]
        given = wanted.notna().to_numpy()
        plain = np.array([label.split("/")[-1] for label in labels], object)
        assert (plain[given] == wanted[given]).all()


def test_copy_of_a_worker_is_the_same_tree(tmp_path):
    domain = read(write(tmp_path, PLACES), nulls="category")
    copy = pickle.loads(pickle.dumps(domain))
    assert copy == domain
    assert hash(copy) == hash(domain)
    assert copy["place"].level.tree is pickle.loads(pickle.dumps(domain))["region"].level.tree  # prepared once
    assert copy["region"].labels == domain["region"].labels


def test_taken_labels_get_numbers(tmp_path):
    rows = [("A", "B/x", "1"), ("A/B", "x", "2"), ("C", "(outside)", "3"), (None, "A", "4"), ("A", "x", "5")]
    domain = read(write(tmp_path, rows), key="path", outside="category")
    labels = domain["region"].labels
    assert len(set(labels)) == len(labels) == 6
    assert "B/x" in labels
    assert "(outside) (2)" in labels


@pytest.mark.slow
def test_million_leaves_are_read_in_seconds(tmp_path):
    numbers = np.arange(1_000_000)
    names = [f"place-{number:07d}" for number in np.random.default_rng(0).permutation(numbers)]
    frame = pd.DataFrame({"country": numbers // 5000, "region": numbers // 250, "place": names})
    frame.to_parquet(tmp_path / "places.parquet")
    domain = read(tmp_path / "places.parquet")
    assert [domain[name].size for name in domain.names] == [1_000_000, 200, 4000]
    sample = frame.sample(100_000, random_state=1)
    for name in ("country", "region"):
        labels = np.array(domain[name].labels, object)[encode(domain[name], pa.array(sample["place"]))]
        assert (labels == sample[name].astype(str)).all()
