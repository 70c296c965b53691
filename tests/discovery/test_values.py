"""Search for values: counts under keyed hashes, ranges of hashes, texts of every kind, and other engines."""

import json
import sys
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpscale as dp
from dpscale.discovery.value_counts import SHARDS, ValueCounts, measure_shard, merge
from dpscale.domain import Domain
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.secret import SecretFile, make_secret, read_secret, secret_tag
from dpscale.records.searched import DROPPED, EMPTY, NULL, OUTSIDE, VALUE, step_values, text_entries, value_codes
from dpscale.runs.searches import shard_ranges
from tests.discovery.small import write_frame

RNG = np.random.default_rng(0)


def attribute_of(**table):
    return Domain.from_dict({"attributes": {"a": {"kind": "discover", **table}}})["a"]


def number_of(**table):
    return Domain.from_dict({"attributes": {"b": {"kind": "coded", "size": 2}}, "numbers": {"a": table}})["a"]


def test_merged_counts_are_those_of_a_dictionary():
    parts, exact = [], {}
    for _ in range(5):
        words = RNG.integers(0, 40, (100, 2)).astype(np.uint64) << np.uint64(58)
        counts = RNG.integers(1, 9, 100)
        parts.append(ValueCounts(words, counts))
        for (one, other), count in zip(words.tolist(), counts.tolist(), strict=True):
            exact[one, other] = exact.get((one, other), 0) + count
    whole = merge(parts)
    assert {
        tuple(word): count for word, count in zip(whole.words.tolist(), whole.counts.tolist(), strict=True)
    } == exact
    again = merge([whole.part(number) for number in range(SHARDS)])
    assert (again.words == whole.words).all()
    assert "[" not in repr(whole)


def test_ranges_have_noise_of_their_own(tmp_path):
    """Equal noise in two ranges would show the difference of their counts."""
    draw = GaussianDraw(1, 10**8, Fraction(1))
    make_secret(tmp_path / "secret.key", 3)
    secret = SecretFile(tmp_path / "secret.key", secret_tag(read_secret(tmp_path / "secret.key")))
    values = []
    for shard in (0, 1, SHARDS - 1):
        words = np.array([[shard << 56, 1], [shard << 56, 2]], np.uint64)
        counts = ValueCounts(words, np.array([500, 500]))
        values.append(measure_shard([counts], secret, {"release": "a"}, draw, -(10**9)).values)
    assert len(np.unique(np.concatenate(values))) == 6


def test_ranges_of_hashes_cover_all_of_them():
    for rows, memory in ((10, 1 << 30), (10**7, 1 << 28), (10**9, 1 << 20)):
        ranges = shard_ranges(rows, memory)
        assert [number for own in ranges for number in own] == list(range(SHARDS))


def test_texts_that_cannot_be_found_have_no_entry():
    column = pa.array(["a", "too long", None, "(outside)", "(null)", "", "ä", "a"])
    found = text_entries(attribute_of(max_length=3, nulls="category"), column)
    texts = [None if row < 0 else found.texts[int(row)].as_py() for row in found.rows]
    assert texts == ["a", None, None, None, None, "", "ä", "a"]
    assert found.states.tolist() == [VALUE, VALUE, EMPTY, VALUE, VALUE, VALUE, VALUE, VALUE]
    binary = pa.array([b"a", b"\xff\xfe"]).cast(pa.binary()).view(pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 2, binary.buffers())
    found = text_entries(attribute_of(), broken)
    assert [int(row) >= 0 for row in found.rows] == [True, False]


@pytest.mark.parametrize(("nulls", "state"), [("reject", NULL), ("drop", DROPPED), ("category", EMPTY)])
def test_nulls_follow_the_domain_file(nulls, state):
    for column in (pa.array(["a", None]), pa.array([1, None]), pa.array(["a", None]).dictionary_encode()):
        assert text_entries(attribute_of(nulls=nulls), column).states.tolist() == [VALUE, state]
    assert value_codes(attribute_of(nulls="drop"), pa.array(["a", None]))[1].tolist()[1] == DROPPED


def test_steps_are_those_of_the_domain_file():
    column = pa.array([1.24, 1.26, -7.0, None, float("inf"), 1e300])
    steps, states = step_values(number_of(low=0, high="private", step=0.5, nulls="zero"), column)
    assert steps.tolist()[:4] == [2, 3, 0, 0]
    assert steps[4] > 1 << 62
    assert states.tolist() == [VALUE] * 6
    bins = Domain.from_dict({"attributes": {"a": {"kind": "bins", "edges": "private", "step": 0.5}}})["a"]
    steps, states = step_values(bins, column)
    assert steps.tolist()[:3] == [2, 2, -14]
    assert states.tolist() == [VALUE, VALUE, VALUE, NULL, OUTSIDE, OUTSIDE]
    texts, states = step_values(number_of(low=0, high="private", unparsable="drop"), pa.array(["12", "x", "3.5"]))
    assert (texts[0], texts[2]) == (12, 4)
    assert states.tolist() == [VALUE, DROPPED, VALUE]


def job_of(folder, frame, attribute, **privacy):
    import tomli_w

    domain = {"attributes": {"a": {"kind": "discover", **attribute}}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    data = {"path": str(write_frame(folder, frame, 3)), "domain": str(folder / "domain.toml")}
    privacy = {"epsilon": 8.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite"), **privacy}
    return {"data": data, "privacy": privacy, "engine": {"seed": 2}, "budget": {"discover": 0.5},
            "workload": [{"family": "marginal", "attributes": [["a"]]}]}  # fmt: skip


def test_many_distinct_values_within_a_small_memory(tmp_path):
    rare = [f"rare {number}" for number in range(60_000)]
    values = np.array(rare + ["often"] * 3000 + ["sometimes"] * 400)
    frame = pd.DataFrame({"a": RNG.permutation(values)})
    job = job_of(tmp_path, frame, {}, delta=1e-10)  # of 60,000 rare values one passes in 3 of 10^6 runs
    job["engine"]["memory"] = "1MiB"
    release = dp.run(job, run_dir=tmp_path / "run")
    assert release.domain["a"].values == ("often", "sometimes")
    for path in release.path.rglob("*"):
        assert not path.is_file() or b"rare " not in path.read_bytes()


def test_nothing_found_leaves_a_usable_release(tmp_path):
    frame = pd.DataFrame({"a": [f"own {number}" for number in range(500)]})
    for other in (True, False):
        folder = tmp_path / str(other)
        folder.mkdir()
        release = dp.run(job_of(folder, frame, {"other": other}), run_dir=folder / "run")
        assert release.domain["a"].size == 2
        assert release.marginal(["a"]).shape == (2,)


def test_public_values_are_cells_in_any_case(tmp_path):
    frame = pd.DataFrame({"a": ["x"] * 900 + ["y"] * 5})
    release = dp.run(job_of(tmp_path, frame, {"values": ["y", "z"]}), run_dir=tmp_path / "run")
    assert release.domain["a"].values == ("y", "z", "x")
    assert abs(release.marginal(["a"])[2] - 900) < 30


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
def test_other_formats(tmp_path, kind):
    frame = pd.DataFrame({"a": ["x"] * 900 + ["007"] * 700 + ["z"] * 3})
    job = job_of(tmp_path, frame, {})
    for path in (tmp_path / "data").glob("*.parquet"):
        path.unlink()
    target = tmp_path / "data" / f"a.{kind}"
    frame.to_csv(target, index=False) if kind == "csv" else frame.to_json(target, orient="records", lines=True)
    assert dp.run(job, run_dir=tmp_path / "run").domain["a"].values == ("007", "x")


@pytest.mark.slow
def test_processes_and_a_cluster_find_the_same(tmp_path):
    from distributed import Client, LocalCluster

    frame = pd.DataFrame({"a": RNG.choice(["x", "y", "z", "w"], 4000, p=[0.6, 0.3, 0.0995, 0.0005])})
    job = job_of(tmp_path, frame, {})
    results = []
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster) as client:
        results.append(dp.run(job, run_dir=tmp_path / "cluster", client=client))
    results.append(dp.run(job, run_dir=tmp_path / "threads"))
    job["engine"]["scheduler"] = "processes"
    results.append(dp.run(job, run_dir=tmp_path / "processes"))
    texts = {(one.path / "domain/searches.json").read_text() for one in results}
    assert len(texts) == 1
    assert json.loads(texts.pop())["a"]["found"]


def test_the_scheduler_does_not_see_the_number_of_values():
    sizes = {sys.getsizeof(ValueCounts(np.zeros((values, 2), np.uint64), np.ones(values, np.int64)))
             for values in (0, 1, 1000)}  # fmt: skip
    assert len(sizes) == 1
