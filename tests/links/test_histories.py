"""Histories: order of children, exact tables and sensitivities by brute force, rows near the tables, evidence."""

import json
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tomli_w

import dpscale as dp
from dpscale.audit.evidence import bundle, check
from dpscale.base.errors import DpscaleError
from dpscale.contributions.links import order_values
from dpscale.domain import Domain
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.job.neighbours import neighbour_relation
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.fitting_loops import project_to_simplex
from dpscale.relational.features import Side
from dpscale.relational.history import (
    HistoryTables,
    NoisyHistory,
    conditional,
    order_children,
    parent_counts,
    step_counts,
)
from dpscale.runs.links.link_data import read_links
from dpscale.runs.links.table_writer import in_order
from dpscale.runs.opening import open_run
from tests.audit.test_bundle import PASSED
from tests.messages import refused

WARDS = ["A", "B", "C"]
DOMAINS = {
    "patients": {"sex": {"kind": "categories", "values": ["F", "M"]}},
    "visits": {"day": {"kind": "bins", "edges": [0, 10, 20, 30, 40, 50, 60]},
               "ward": {"kind": "categories", "values": WARDS}},
    "doctors": {"field": {"kind": "coded", "size": 2}},
}  # fmt: skip


def visits_of(rng, patients):
    """Visits of patients: the ward is that of the visit before with probability 0.9, and gaps are short."""
    rows = []
    for patient in range(patients):
        day, ward = rng.uniform(0, 20), rng.integers(3)
        for _ in range(rng.integers(1, 6)):
            rows.append((patient, day, WARDS[ward], int(rng.integers(4))))
            day, ward = day + rng.uniform(0, 7), ward if rng.random() < 0.9 else rng.integers(3)
    return pd.DataFrame(rows, columns=["patient", "day", "ward", "doctor"])


def write_job(folder, visits, patients=None, **changes):
    patients = int(visits.patient.max()) + 1 if patients is None else patients
    sex = np.where(np.arange(patients) % 2, "M", "F")
    frames = {"patients": pd.DataFrame({"patient": range(patients), "sex": sex}),
              "visits": visits.sample(frac=1, random_state=0),
              "doctors": pd.DataFrame({"doctor": range(4), "field": [0, 1, 0, 1]})}  # fmt: skip
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": DOMAINS[name]}))
    tables = {name: {"path": f"{name}.parquet", "domain": f"{name}.toml"} for name in DOMAINS}
    tables["patients"]["key"] = "patient"
    tables["doctors"] |= {"key": "doctor", "public": True}
    link = {"kind": "one-to-many", "parent": "patients", "child": "visits", "child_key": "patient", "max_degree": 4,
            "order_by": "day", "parents": ["seen"]}  # fmt: skip
    seen = {"name": "seen", "kind": "one-to-many", "parent": "doctors", "child": "visits", "child_key": "doctor"}
    job = {"tables": tables, "link": [seen, link | changes.pop("history", {})],
           "privacy": {"privacy_cost": 15.0, "dataset": "visits"},
           "engine": {"scheduler": "synchronous", "seed": 1}}  # fmt: skip
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(job | changes))
    return path


def exact_of(path):
    job = Job.read(path)
    engine = resolve(scheduler="synchronous")
    try:
        return read_links(engine, job, job.link[1], neighbour_relation(job))
    finally:
        engine.close()


def histories_of(rows, parents):
    """Return the rows of each parent in order; the parents are those of the order of their keys' hashes."""
    return sorted(rows[parents == one].tolist() for one in np.unique(parents))


def test_exact_tables_are_those_of_pandas(tmp_path):
    visits = visits_of(np.random.default_rng(0), 40)
    exact = exact_of(write_job(tmp_path, visits, history={"max_degree": 10}))
    rows, parents = exact.history()
    tables = HistoryTables((6, 3, 2), 0, 10)
    ordered = visits.sort_values(["patient", "day"])
    codes = np.stack([ordered.day // 10, ordered.ward.map(WARDS.index), ordered.doctor % 2], axis=1).astype(int)
    assert histories_of(rows, parents) == histories_of(codes, ordered.patient.to_numpy())
    before, after = codes[:-1], codes[1:]
    same = np.diff(ordered.patient) == 0
    expected = [np.zeros((tables.sizes[i], tables.sizes[j]), int) for i, j in tables.pairs]
    for one, two in zip(before[same], after[same], strict=True):
        for table, (i, j) in zip(expected, tables.pairs, strict=True):
            table[one[i], two[j]] += 2 if i == j else 1
    assert (step_counts(rows, parents, tables) == np.concatenate([one.ravel() for one in expected])).all()
    spans = ordered.groupby("patient").day.agg(lambda one: one.max() // 10 - one.min() // 10)
    by_span = parent_counts(rows, parents, tables)[: len(tables.numbers) * len(tables.spans)]
    found = by_span.reshape(-1, len(tables.spans)).sum(axis=0) / 3
    assert found.tolist() == [((spans >= a) & (spans < b)).sum() for a, b in pairwise([*tables.spans.tolist(), 6])]


def databases():
    """All databases of two patients with at most three visits each, of two days and wards; bound 2 is exceeded."""
    visit = [(5.0, "A", 0), (5.0, "B", 1), (15.0, "A", 1)]
    histories = [()] + [one for n in (1, 3) for one in product(visit, repeat=n)]
    yield from product(histories, repeat=2)


@pytest.mark.parametrize("bound", [2, 3])
def test_no_unit_changes_tables_beyond_the_bound(tmp_path, bound):
    tables, largest = HistoryTables((6, 3, 2), 0, bound), [0.0, 0.0]
    rng = np.random.default_rng(bound)
    chosen = list(databases())
    for first, second in [chosen[i] for i in rng.choice(len(chosen), 25, replace=False)]:
        made = []
        for number, histories in enumerate(((first, second), (first, ()))):
            rows = [(who, *one) for who, visits in enumerate(histories) for one in visits] or [(0, 5.0, "A", 0)]
            folder = tmp_path / f"{number}"
            folder.mkdir(exist_ok=True)
            frame = pd.DataFrame(rows, columns=["patient", "day", "ward", "doctor"])
            path = write_job(folder, frame, patients=2 - number, history={"max_degree": bound})
            rows, parents = exact_of(path).history()
            made.append((step_counts(rows, parents, tables), parent_counts(rows, parents, tables)))
        for at in (0, 1):
            largest[at] = max(largest[at], float(((made[0][at] - made[1][at]) ** 2).sum()))
    assert 0 < largest[0] <= tables.steps_squared(1)
    assert 0 < largest[1] <= tables.parents_squared(1)
    if bound == 3:  # a claim for fewer children is caught
        assert largest[0] > HistoryTables((6, 3, 2), 0, 2).steps_squared(1)


@pytest.mark.parametrize("associate", [True, False])
def test_children_keep_cells_and_degrees_and_approach_tables(associate):
    rng = np.random.default_rng(0)
    visits = visits_of(rng, 2000).sort_values(["patient", "day"])
    rows = np.stack([visits.day // 10, visits.ward.map(WARDS.index)], axis=1).astype(int)
    parents, tables = visits.patient.to_numpy(), HistoryTables((6, 3), 0, 5)
    noisy = NoisyHistory(tables, step_counts(rows, parents, tables).astype(float),
                         parent_counts(rows, parents, tables).astype(float), (0.1, 0.1))  # fmt: skip
    mixed = rng.permutation(len(rows))
    u, v = Side.made(np.zeros((2000, 1), int), (1,)), Side.made(rows[mixed], (6, 3))
    links = np.stack([parents, rng.permutation(len(rows))], axis=1)
    found = order_children(links, (u, v), noisy, PublicStream("release", "history"), associate)
    assert (np.sort(found[:, 1]) == np.arange(len(rows))).all()
    assert (found[:, 0] == parents).all()
    made = rows[mixed][found[:, 1]]
    assert (np.diff(made[:, 0])[np.diff(parents) == 0] >= 0).all()
    step, target = step_counts(made, parents, tables), noisy.steps
    at = slice(tables.starts[3], tables.starts[4])  # wards of consecutive visits
    assert np.abs(step[at] - target[at]).sum() < 0.05 * target[at].sum()
    first = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
    last = np.r_[first[1:], len(parents)] - 1
    spans = [(one[last, 0] - one[first, 0]).mean() for one in (rows, made)]
    assert abs(spans[1] / spans[0] - 1) < 0.1


def test_released_rows_are_in_order_with_close_wards(tmp_path):
    visits = visits_of(np.random.default_rng(0), 1500)
    release = dp.run(write_job(tmp_path, visits, history={"max_degree": 5}), tmp_path / "run")
    made = release.synthetic()["visits"].compute()
    assert made.groupby("patient", sort=False).day.apply(lambda one: (np.diff(one) >= 0).all()).all()
    assert (made.groupby("patient").ngroup().diff().fillna(1) != 0).sum() == made.patient.nunique()

    def alike(frame):
        return (frame.ward == frame.groupby("patient").ward.shift()).sum() / len(frame)

    assert abs(alike(made) / alike(visits.sort_values(["patient", "day"])) - 1) < 0.15
    check.check_bundle(bundle.write_bundle(open_run(release.path), PASSED))


@pytest.mark.parametrize("history", [
    {"order_by": "date"},
    {"order_by": "day", "kind": "one-to-one", "max_degree": 1},
    {"parents": ["clinics"]},
    {"order_by": "day", "mechanism": "published"},
])  # fmt: skip
def test_faulty_histories_are_refused(tmp_path, history):
    with refused(DpscaleError):
        Job.read(write_job(tmp_path, visits_of(np.random.default_rng(0), 3), history=history))


def test_text_as_second_column_of_an_order_is_refused_before_any_charge(tmp_path):
    path = write_job(tmp_path, visits_of(np.random.default_rng(0), 5), history={"order_by": ["day", "ward"]})
    with refused(DpscaleError):
        exact_of(path)
    with refused(DpscaleError):
        dp.run(path, tmp_path / "run")
    assert not (tmp_path / "run/allocation/allocation.json").exists()


def test_private_bound_of_one_child_has_no_history(tmp_path):
    """The bound follows from the first measurement: the order then has nothing to order, and no table is measured."""
    visits = visits_of(np.random.default_rng(0), 400).groupby("patient").head(1)
    path = write_job(tmp_path, visits, history={"max_degree": "private"})
    release = dp.run(path, tmp_path / "run")
    assert json.loads((tmp_path / "run/allocation/allocation.json").read_text())["bounds"] == {"visits": 1}
    assert not (tmp_path / "run/links/visits/003-00000000-00000001.parquet").exists()
    assert release.synthetic()["visits"].compute().patient.is_unique
    check.check_bundle(bundle.write_bundle(open_run(release.path), PASSED))


def test_texts_without_types_have_the_order_of_numbers_and_times():
    texts = pa.array(["9", "10", " 2.5", None, "x", "2024-01-02", "2024-01-02 00:00:01", "2024-01-01T23:59:59"])
    values = order_values(texts, typed=False)
    assert values[:5].tolist() == [9, 10, 2.5, np.inf, np.inf]
    assert np.argsort(values[5:]).tolist() == [2, 0, 1]
    assert order_values(texts, typed=True).tolist() == [0] * 8
    dates = pa.array([3, None, 1], pa.timestamp("ns", tz="UTC"))
    assert order_values(dates, typed=True).tolist() == [3, np.inf, 1]


def test_values_of_a_shared_column_stay_in_their_rows():
    """Dates of one cell are exchanged within a parent, but not if a number has its values in the same column."""
    attribute = {"kind": "bins", "edges": [0, 10, 20]}
    rows = pa.table({"day": [5.0, 3.0, 15.0, 1.0], "ward": [0, 1, 2, 3]})
    pairs = np.array([[0, 0], [0, 1], [0, 2], [1, 3]])
    made = in_order(rows, pairs, "day", Domain.from_dict({"attributes": {"day": attribute}}))
    assert made.column("day").to_pylist() == [3.0, 5.0, 15.0, 1.0]
    shared = {"attributes": {"day": attribute}, "numbers": {"hours": {"from": "day", "low": 0, "high": 20}}}
    assert in_order(rows, pairs, "day", Domain.from_dict(shared)).column("day").to_pylist() == [5.0, 3.0, 15.0, 1.0]


def test_projection_and_conditional_distribution():
    assert project_to_simplex(np.array([3.0, -1.0, 1.0]), 3.0).tolist() == [2.5, 0.0, 0.5]
    law = conditional(
        np.array([[8.0, 2.0], [1.0, 9.0]]), np.array([10.0, 10.0]), 1e-6, np.array([[1.0, 1.0], [0.0, 1.0]])
    )
    assert np.allclose(law, [[0.8, 0.2], [0.0, 1.0]], atol=1e-6)


@pytest.mark.parametrize("parents", [["seen"], []])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("place", range(3))
def test_searched_attribute_in_any_position_of_an_ordered_child(tmp_path, monkeypatch, place, last, parents):
    """Codes have the listed attributes only; the history is that of the same data without the searched one."""
    visits = visits_of(np.random.default_rng(3), 40)
    visits["note"] = np.where(np.arange(len(visits)) % 3, "often", "seldom")
    attributes = sorted(DOMAINS["visits"].items(), reverse=last)
    changes = {"history": {"parents": parents}, "engine": {"scheduler": "synchronous"},
               "privacy": {"epsilon": 20.0, "delta": 1e-6, "dataset": "visits"}}  # fmt: skip
    found = []
    for searched in (False, True):
        own = list(attributes)
        if searched:
            own.insert(place, ("note", {"kind": "discover", "max_length": 20}))
        monkeypatch.setitem(DOMAINS, "visits", dict(own))
        folder = tmp_path / str(searched)
        folder.mkdir()
        found.append(exact_of(path := write_job(folder, visits, **{**changes, "history": dict(changes["history"])})))
    for one, other in zip(found[0].history(), found[1].history(), strict=True):
        assert (one == other).all()
    if last and not parents:
        release = dp.run(path, tmp_path / "run")
        assert release.tables["visits"].total().estimate == pytest.approx(len(visits), abs=60)


def test_links_are_read_before_the_first_charge(tmp_path, monkeypatch):
    """A fault of the reading that later stages do is met while nothing is charged."""
    from dpscale.ledger import Ledger
    from dpscale.runs.links import link_data

    monkeypatch.setitem(DOMAINS, "visits", {"note": {"kind": "discover", "max_length": 20}, **DOMAINS["visits"]})
    visits = visits_of(np.random.default_rng(3), 40)
    visits["note"] = "often"
    path = write_job(tmp_path, visits, engine={"scheduler": "synchronous"},
                     privacy={"epsilon": 20.0, "delta": 1e-6, "dataset": "visits"})  # fmt: skip

    def planted(domain):
        if domain.searches:
            raise IndexError(3)
        return tuple(domain.names)

    monkeypatch.setattr(link_data, "listed_names", planted)
    with refused(dp.InternalError) as caught:
        dp.run(path, tmp_path / "run")
    assert caught.value.exit_code == 70
    assert "run it again" not in str(caught.value)
    if (tmp_path / "ledger.sqlite").exists():
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
            assert not ledger.summary()["datasets"]
