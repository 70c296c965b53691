"""Rules across tables: all linked rows satisfy them, whatever the noise."""

import json

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.base.errors import DpscaleError
from dpscale.job import Job
from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import PossibleLinks, repair_links
from dpscale.runs.links.linked_values import LinkedValues
from tests.messages import refused

YEARS, KINDS = 6, 3
CODED = {"year": {"kind": "coded", "size": YEARS}, "kind": {"kind": "coded", "size": KINDS}}


RULES = ("events.year = teams.year", "not (players.kind = 0 and events.kind = 2)")


def write_teams(folder, rules=RULES, **changes):
    """Teams of a year (public) and players; events belong to a player and have the year of their team."""
    rng = np.random.default_rng(1)
    teams = pd.DataFrame({"team": range(30), "year": np.arange(30) % YEARS, "kind": rng.integers(0, KINDS, 30)})
    players = pd.DataFrame({"player": range(200), "kind": rng.integers(0, KINDS, 200)})
    events = pd.DataFrame({"player": np.repeat(np.arange(200), 4), "team": rng.integers(0, 30, 800)})
    events["year"] = teams.year[events.team].to_numpy()
    events["kind"] = (players.kind[events.player].to_numpy() + rng.integers(0, 2, 800)) % KINDS
    for name, frame, attributes in (("teams", teams, CODED), ("players", players, {"kind": CODED["kind"]}),
                                    ("events", events, CODED)):  # fmt: skip
        frame.to_parquet(folder / f"{name}.parquet", index=False)
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    names = ("teams", "players", "events")
    job = {
        "tables": {name: {"path": f"{name}.parquet", "domain": f"{name}.toml"} for name in names},
        "link": [
            {"name": "sides", "kind": "one-to-many", "parent": "teams", "child": "events", "child_key": "team"},
            {"kind": "one-to-many", "parent": "players", "child": "events", "child_key": "player", "max_degree": 6,
             "order_by": "year", "parents": ["sides"]},
        ],
        "rule": [{"rule": rule} for rule in rules],
        "privacy": {"privacy_cost": 2.0, "dataset": "teams"},
        "engine": {"scheduler": "synchronous", "seed": 3},
    }  # fmt: skip
    job["tables"]["teams"] |= {"key": "team", "public": True}
    job["tables"]["players"]["key"] = "player"
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(job | changes))
    return path


@pytest.mark.parametrize("cost", [0.05, 4.0])
def test_linked_rows_satisfy_rules(tmp_path, cost):
    job = write_teams(tmp_path, privacy={"privacy_cost": cost, "dataset": "teams"})
    release = dp.run(job, tmp_path / "run")
    tables = {name: frame.compute() for name, frame in release.synthetic().items()}
    events = tables["events"]
    teams, players = (tables[name].set_index(key) for name, key in (("teams", "team"), ("players", "player")))
    assert (teams.year.reindex(events.team).to_numpy() == events.year.to_numpy()).all()
    kind = players.kind.reindex(events.player).to_numpy()
    assert not ((kind == 0) & (events.kind.to_numpy() == 2)).any()
    assert events.groupby("player").size().max() <= 6
    ordered = events.groupby("player", sort=False).year.apply(lambda one: (np.diff(one) >= 0).all())
    assert ordered.all()


@pytest.mark.parametrize("bound", [None, 2])
def test_flow_finds_all_possible_links(bound):
    rng = np.random.default_rng(0)
    for seed in range(30):
        parents, children = rng.integers(0, 4, 12), rng.integers(0, 5, 20)
        possible = rng.random((4, 5)) < 0.5
        pairs = np.stack([rng.permutation(np.repeat(np.arange(12), 2))[:20], np.arange(20)], axis=1)
        links = PossibleLinks(parents, children, possible, bound)
        found, left = repair_links(pairs, links, PublicStream("test", str(seed)))
        assert (np.sort(found[:, 1]) == np.arange(20)).all()
        assert (np.flatnonzero(links.broken(found)) == np.sort(left)).all()
        if bound:
            assert np.bincount(found[:, 0], minlength=12).max() <= bound
        else:
            assert len(left) == (~possible[np.unique(parents)].any(axis=0))[children].sum()


@pytest.mark.parametrize("rules", [
    ["events.year = players.year"],
    ["events.year = clubs.year"],
    ["teams.year >= players.kind"],
    ["if events.year < 3 then events.kind = 1"],
    ["if events.year = 9 then teams.year = 1"],
    ["if teams.kind = 1 then events.kind != 1", "if events.kind = 2 then players.kind != 1"],
    ["events.year > teams.year", "teams.year > events.year"],
])  # fmt: skip
def test_faulty_rules_are_refused(tmp_path, rules):
    with refused(DpscaleError):
        Job.read(write_teams(tmp_path, rules))


PATIENTS = {"attributes": {"born": {"kind": "date", "by": "month", "low": "2019-01", "high": "2019-12"},
                           "sex": {"kind": "categories", "values": ["F", "M"]},
                           "first": {"kind": "date", "by": "month", "low": "2019-01", "high": "2020-12"}},
            "rule": [{"rule": "first >= born"}]}  # fmt: skip
VISITS = {"attributes": {"date": {"kind": "date", "by": "month", "low": "2019-01", "high": "2020-12"},
                         "until": {"kind": "date", "by": "month", "low": "2019-01", "high": "2021-01",
                                   "nulls": "category"},
                         "ward": {"kind": "coded", "size": 3}},
          "rule": [{"rule": "until >= date"}]}  # fmt: skip


def write_visits(folder, ordered, public=False, form=""):
    """Patients and visits that are not before the patient was born, nor before the first visit.

    With a format dates are texts in it, and the rows have the types of the files.
    """
    rng = np.random.default_rng(2)
    day = np.datetime64("2019-01-01")
    born = rng.integers(0, 365, 300)
    first = born + rng.integers(0, 60, 300)
    patients = pd.DataFrame({"patient": range(300), "born": day + born, "first": day + first,
                             "sex": rng.choice(["F", "M"], 300)})  # fmt: skip
    of = np.repeat(np.arange(300), 3)
    date = first[of] + np.minimum(rng.geometric(0.05, 900) - 1, 280)
    until = pd.Series(day + date + np.minimum(rng.geometric(0.2, 900) - 1, 25)).where(rng.random(900) < 0.9)
    visits = pd.DataFrame({"patient": of, "date": day + date, "until": until, "ward": rng.integers(0, 3, 900)})
    for name, frame, domain in (("patients", patients, PATIENTS), ("visits", visits, VISITS)):
        if form:
            domain = json.loads(json.dumps(domain))
            for date in set(frame) & {"born", "first", "date", "until"}:
                frame[date] = frame[date].dt.strftime(form)
                domain["attributes"][date]["format"] = form
        frame.to_parquet(folder / f"{name}.parquet", index=False)
        (folder / f"{name}.toml").write_text(tomli_w.dumps(domain))
    link = {"kind": "one-to-many", "parent": "patients", "child": "visits", "child_key": "patient", "max_degree": 5}
    tables = {name: {"path": f"{name}.parquet", "domain": f"{name}.toml"} for name in ("patients", "visits")}
    tables["patients"] |= {"key": "patient"} | ({"public": True} if public else {})
    job = {"tables": tables, "link": [link | ({"order_by": "date"} if ordered else {})],
           "rule": [{"rule": "visits.date >= patients.born"}, {"rule": "visits.date >= patients.first"},
            {"rule": "if patients.sex = 'M' then visits.ward != 2"}],
           "privacy": {"privacy_cost": 2.0, "dataset": "visits"},
           "engine": {"scheduler": "synchronous", "seed": 3}}  # fmt: skip
    if form:
        job["synthesize"] = {"types": "input"}
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(job))
    return path


@pytest.mark.parametrize(
    ("ordered", "public", "form"), [(False, False, ""), (True, False, ""), (False, True, ""), (True, False, "%d/%m/%Y")]
)
def test_values_of_linked_rows_satisfy_rules(tmp_path, ordered, public, form):
    release = dp.run(write_visits(tmp_path, ordered, public, form), tmp_path / "run")
    tables = {name: frame.compute() for name, frame in release.synthetic().items()}
    for rows in tables.values():
        for name in set(rows) & {"born", "first", "date", "until"}:
            rows[name] = pd.to_datetime(rows[name], format=form or None)
    visits = tables["visits"].merge(tables["patients"], on="patient")
    date, until, born, first = (visits[name] for name in ("date", "until", "born", "first"))
    assert len(visits) > 500
    assert not (date < born).any()
    assert not (date < first).any()
    assert not (until < date).any()
    assert not (first < born).any()
    assert not ((visits.sex == "M") & (visits.ward == 2)).any()
    assert (date == first).sum() < 0.2 * len(visits)
    assert json.loads((tmp_path / "run/synthetic/_rules.json").read_text()) == {"broken": {"visits": 0}}
    if ordered:
        months = (
            tables["visits"]
            .groupby("patient", sort=False)
            .date.apply(lambda one: (np.diff(pd.to_datetime(one).dt.to_period("M").astype("int64")) >= 0).all())
        )
        assert months.all()


def test_linked_rows_that_break_a_rule_are_not_written_as_correct(tmp_path, monkeypatch):
    monkeypatch.setattr(LinkedValues, "fit", lambda *given: None)
    with refused(RuntimeError):
        dp.run(write_visits(tmp_path, False), tmp_path / "run")
