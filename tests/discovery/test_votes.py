"""Votes of units for values: weights, sensitivity and counts by brute force, the threshold, runs, and refused jobs."""

import json
import math
import sys
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import recompute, sensitivities
from dpscale.base.errors import DomainError, JobError
from dpscale.discovery.value_counts import (
    MOST_SPLIT,
    SHARDS,
    VOTE,
    UnitValues,
    count_votes,
    delta_of_votes,
    distinct_pairs,
    threshold_for,
    vote_weight,
    vote_weights,
)
from dpscale.domain import Domain
from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.streams import open_stream, seeded_secret
from tests.audit.forging import forge, records_of, restate
from tests.discovery.small import write_job
from tests.discovery.test_threshold import exact_tail
from tests.messages import refused
from tests.selection import mostly_slow

DOMAIN = {"attributes": {"tag": {"kind": "discover", "count": "units"}, "sex": {"kind": "coded", "size": 2}}}
WORKLOAD = [{"family": "marginal", "attributes": [["tag"], ["sex"]]}]
DATA = {"privacy_unit": "person", "max_rows_per_unit": 16}
DELTA = Fraction(1, 20)


def make_frame(persons=400):
    """Return 16 rows of each person: one tag of four that others have too, repeated, and a tag of its own."""
    rows = [(person, place) for person in range(persons) for place in range(16)]
    tags = [f"tag {(person + place) % 4}" if place else f"only {person}" for person, place in rows]
    return pd.DataFrame({"person": np.arange(16 * persons) // 16, "tag": tags, "sex": np.arange(16 * persons) % 2})


def job_of(folder, frame=None, count="units", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    domain = {"attributes": {**DOMAIN["attributes"], "tag": {"kind": "discover", "count": count}}}
    frame = make_frame() if frame is None else frame
    return write_job(folder, frame, domain, **{"workload": WORKLOAD, "data": DATA, **changes})


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_weights_are_exact_and_bound_the_norm():
    values = np.arange(1, 70_000)
    weights = vote_weights(values)
    assert weights.tolist() == [vote_weight(one) for one in values.tolist()]
    assert (values * weights**2 <= VOTE**2).all()
    assert weights[0] == VOTE


def test_votes_are_those_of_a_dictionary():
    random = np.random.default_rng(0)
    units, words = (random.integers(0, high, (300, 2)).astype(np.uint64) << np.uint64(60) for high in (4, 8))
    owned = defaultdict(set)
    for unit, word in zip(map(tuple, units.tolist()), map(tuple, words.tolist()), strict=True):
        owned[unit].add(word)
    exact = defaultdict(int)
    for own in owned.values():
        for word in own:
            exact[word] += math.isqrt(VOTE**2 // len(own))
    parts = [distinct_pairs([UnitValues(units[own], words[own])]) for own in (slice(0, 90), slice(90, 300))]
    found = count_votes(parts, range(SHARDS))
    assert dict(zip(map(tuple, found.words.tolist()), found.counts.tolist(), strict=True)) == exact
    for unit in list(owned)[:4]:  # without one unit, the votes change by a vector of norm 1
        rest = [UnitValues(one.units[keep], one.words[keep]) for one in parts
                if (keep := (one.units != np.array(unit, np.uint64)).any(axis=1)) is not None]  # fmt: skip
        less = dict(zip(map(tuple, (other := count_votes(rest, range(SHARDS))).words.tolist()), other.counts.tolist(),
                        strict=True))  # fmt: skip
        change = sum((count - less.get(word, 0)) ** 2 for word, count in exact.items())
        assert 0.9 * VOTE**2 < change <= VOTE**2
    halves = [count_votes(parts, shards) for shards in (range(100), range(100, SHARDS))]
    assert sum(len(one.counts) for one in halves) == len(exact)


def test_the_scheduler_does_not_see_the_number_of_values():
    words = [np.zeros((rows, 2), np.uint64) for rows in (0, 9)]
    sizes = {sys.getsizeof(UnitValues(own, own)) for own in words}
    assert len(sizes) == 1


@pytest.mark.parametrize("values", [1, 2, 5, 30])
def test_delta_is_that_of_the_worst_number_of_values(values):
    draw = gaussian_draw(VOTE**2, Fraction(1, 4), 1, "a test")
    for sd in (3, 4, 5):
        threshold = draw.multiplier * VOTE + int(sd * draw.variance**0.5)
        exact = max(1 - (1 - exact_tail(threshold - draw.multiplier * vote_weight(one), draw.variance)) ** one
                    for one in range(1, values + 1))  # fmt: skip
        assert exact <= delta_of_votes(threshold, draw, values) <= 1.3 * exact + 1e-15


def test_many_values_have_an_upper_bound():
    draw = gaussian_draw(VOTE**2, Fraction(1, 100), 1, "a test")
    for values in (MOST_SPLIT + 1, 100_000):
        found = threshold_for(draw, Fraction(1, 10**9), values, votes=True)
        mine = sensitivities.vote_delta(found.value, draw.multiplier, draw.variance, VOTE, values)
        assert 0.5 * found.delta < mine <= found.delta


def passing_share(draw, threshold, values, draws):
    """Share of releases in which one of the values of a unit alone passes."""
    noise = draw.words(open_stream(seeded_secret(7), "noise", {"test": "votes"}), draws * values)
    return ((draw.multiplier * vote_weight(values) + noise.reshape(draws, values)) >= threshold).any(axis=1).mean()


def test_simulated_draws_reject_a_lower_threshold():
    draw, draws = gaussian_draw(VOTE**2, Fraction(1, 4), 1, "a test"), 100_000
    found = threshold_for(draw, DELTA, 8, votes=True)
    noise = 4 * math.sqrt(float(DELTA) / draws)
    largest = [max(passing_share(draw, threshold, values, draws) for values in (1, 2, 4, 8))
               for threshold in (found.value, int(0.9 * found.value))]  # fmt: skip
    assert largest[0] <= float(DELTA) + noise < largest[1]


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_votes_find_values_that_counts_of_rows_do_not(tmp_path):
    release = dp.run(job_of(tmp_path), run_dir=tmp_path / "run")
    assert [one for one in release.domain["tag"].values if one.startswith("only")] == []
    assert set(release.domain["tag"].values) == {f"tag {number}" for number in range(4)}
    rows = dp.run(job_of(tmp_path / "rows", count="rows"), run_dir=tmp_path / "rows/run")
    found = json.loads((release.path / "domain/searches.json").read_text())["tag"]
    other = json.loads((rows.path / "domain/searches.json").read_text())["tag"]
    assert found["threshold"] < other["threshold"] / 5
    votes = {one["value"]: one["count"] for one in found["found"]}
    assert sum(votes.values()) == pytest.approx(4 * 400 / 5**0.5, rel=0.3)  # five values of each of 400 persons
    assert "votes, not records" in (release.path / "report.html").read_text()


def test_rows_beyond_the_bound_do_not_vote(tmp_path):
    """With two rows a person has at most two values, so all votes are at most √2; without the bound they are √5."""
    data = {**DATA, "max_rows_per_unit": 2}
    release = dp.run(job_of(tmp_path, data=data, privacy={"epsilon": 20.0}), run_dir=tmp_path / "run")
    votes = release.found("tag")["estimate"]
    assert 200 < votes.sum() < 400 * 2**0.5 + 50


@pytest.mark.parametrize("scheduler", mostly_slow(["threads", "processes"], {"threads"}))
def test_schedulers_and_passes_find_the_same(tmp_path, scheduler):
    texts = set()
    for number, engine in enumerate(({"scheduler": "synchronous"}, {"scheduler": scheduler, "memory": "256 KiB"})):
        job = job_of(tmp_path, engine=engine)
        release = dp.run(job, run_dir=tmp_path / f"run{number}")
        texts.add((release.path / "domain/searches.json").read_text())
    assert len(texts) == 1


@pytest.mark.slow
def test_a_cluster_finds_the_same(tmp_path):
    from distributed import LocalCluster

    first = dp.run(job_of(tmp_path), run_dir=tmp_path / "one")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        engine = {"scheduler": cluster.scheduler_address}
        second = dp.run(job_of(tmp_path, engine=engine), run_dir=tmp_path / "two")
    texts = {(one.path / "domain/searches.json").read_text() for one in (first, second)}
    assert len(texts) == 1


def test_units_of_another_table_vote_once(tmp_path):
    frame = make_frame()
    pd.DataFrame({"person": range(400), "house": np.arange(400) // 4}).to_parquet(tmp_path / "houses.parquet")
    data = {"privacy_unit": "person", "max_rows_per_unit": 64,
            "unit_through": [{"path": str(tmp_path / "houses.parquet"), "key": "person", "unit": "house"}]}  # fmt: skip
    release = dp.run(job_of(tmp_path, frame, data=data, privacy={"epsilon": 20.0}), run_dir=tmp_path / "run")
    found = dict(release.found("tag")[["cell", "estimate"]].itertuples(index=False))
    assert sum(found[f"tag {number}"] for number in range(4)) == pytest.approx(4 * 100 / 8**0.5, rel=0.2)


def test_evidence_recomputes_the_cost_of_votes(tmp_path):
    release = dp.run(job_of(tmp_path), run_dir=tmp_path / "run")
    (tmp_path / "selftest.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    given = ["evidence", str(release.path), "--selftest", str(tmp_path / "selftest.json")]
    assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    folder = release.path / "evidence"
    assert recompute.faults(folder) == []
    files = recompute.read_files(folder)
    [record] = records_of(files, entry="-domain")
    assert Fraction(record["cost"]) == Fraction(int(record["multiplier"]) ** 2 * VOTE**2, int(record["variance"]) - 8)
    assert 0 < sensitivities.threshold_delta(record, files["parts"]["data"]) <= 1e-6

    def larger_votes(files):
        files["parts"]["data"]["bounds"]["votes on tag"]["changes"] = [[[1, 4 * VOTE]]]
        restate(files)

    faults = recompute.faults(forge(folder, tmp_path / "forged", larger_votes))
    assert any("but" in fault and "charged" in fault for fault in faults)


def test_wrong_domains_and_jobs_are_refused(tmp_path):
    with refused(DomainError):
        Domain.from_dict({"attributes": {"a": {"kind": "discover", "count": "votes"}}})
    job = job_of(tmp_path)
    job["data"] = {key: value for key, value in job["data"].items() if key not in DATA}
    with refused(JobError):
        dp.run(job, run_dir=tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()
