"""Data frames as input: counts equal those of the same rows in files, and a frame whose content changes between passes
is refused.
"""

import hashlib
from uuid import UUID

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tomli_w

import dpscale as dp
from dpscale.engine import frames as engine_frames
from dpscale.engine.frames import frame_table
from dpscale.engine.schedulers import ClusterEngine, LocalEngine
from dpscale.ledger import Ledger
from dpscale.records import frames
from dpscale.records.frames import as_arrow, content_of
from dpscale.records.origin import snapshot
from dpscale.runs.opening import open_part
from tests.audit.small import SIZES, frame, measurements
from tests.messages import refused

DOMAIN = dp.Domain(SIZES)
SETS = [("a", "b"), ("b", "c")]


def count_cells(rows):
    return [np.histogramdd(rows[list(names)].to_numpy(), [np.arange(SIZES[n] + 1) - 0.5 for n in names])[0]
            for names in SETS]  # fmt: skip


def make_job(folder, **changes):
    domain = {"attributes": {key: {"kind": "coded", "size": size} for key, size in SIZES.items()}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    return {"data": {"domain": str(folder / "domain.toml")},
            "privacy": {"privacy_cost": 1e11, "dataset": "frame", "ledger": str(folder / "ledger.sqlite"),
                        "allow_weak_privacy": True},
            "workload": [{"family": "marginal", "attributes": [list(names) for names in SETS]}],
            "mechanism": {"name": "residual-planner"}, "engine": {"scheduler": "synchronous"}} | changes  # fmt: skip


def frame_kinds():
    """Yield the same rows in every supported kind of frame."""
    rows = frame()
    yield "pandas", rows
    yield "pandas, shuffled index", rows.set_axis(rows.index[::-1])
    yield "pyarrow", pa.Table.from_pandas(rows)
    yield "dask", dd.from_pandas(rows, npartitions=3)
    yield "dask of a graph", dd.from_pandas(rows, npartitions=2).map_partitions(lambda part: part[part.a >= 0])
    try:
        import polars
    except ImportError:
        return
    yield "polars", polars.from_pandas(rows)
    yield "polars, lazy", polars.from_pandas(rows).lazy()


KINDS = dict(frame_kinds())


@pytest.mark.parametrize("kind", KINDS)
def test_run_on_frame_matches_counts(tmp_path, kind):
    release = dp.run(make_job(tmp_path), tmp_path / "run", data=KINDS[kind])
    for names, counts in zip(SETS, count_cells(frame()), strict=True):
        np.testing.assert_allclose(release.marginal(names), counts, atol=0.01)
    text = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").glob("*.*") if path.is_file())
    assert 'path = "frame://"' in text
    assert dp.run(make_job(tmp_path), tmp_path / "run", data=KINDS[kind]).manifest == release.manifest


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_stages_that_read_other_columns_agree_on_frame(tmp_path, searched, counted):
    rows = frame().assign(town=lambda rows: rows.c.map("town {}".format), unit=range(len(frame())))
    workload = [{"family": "marginal", "attributes": [["a"]]}]
    if counted:
        workload += [{"family": "marginal", "attributes": [["b"]], "count": "units"}]
    job = make_job(tmp_path, workload=workload)
    job["privacy"] = {"epsilon": 8, "delta": 1e-6} | {name: job["privacy"][name] for name in ("dataset", "ledger")}
    job["data"] |= {"privacy_unit": "unit", "max_rows_per_unit": 1}
    town = {"kind": "discover", "max_length": 8} if searched else {"kind": "categories", "values": ["x", "y"]}
    domain = {"attributes": {name: {"kind": "coded", "size": SIZES[name]} for name in ("a", "b")} | {"town": town}}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))

    release = dp.run(job, tmp_path / "run", data=rows)
    np.testing.assert_allclose(release.marginal("a"), np.bincount(rows.a, minlength=SIZES["a"]), atol=30)
    if counted:
        np.testing.assert_allclose(release.units("b")["estimate"], np.bincount(rows.b, minlength=SIZES["b"]), atol=30)
    assert dp.run(job, tmp_path / "run", data=rows).manifest == release.manifest
    with refused(dp.DataError):
        dp.run(job, tmp_path / "run", data=rows.iloc[1:])


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_contribution_bound_is_independent_of_pieces(tmp_path, scheduler, monkeypatch):
    monkeypatch.setattr(engine_frames, "PIECE_ROWS", 70)
    data = {"domain": str(tmp_path / "domain.toml"), "privacy_unit": "unit", "max_rows_per_unit": 1}
    made = make_job(tmp_path, data=data, engine={"scheduler": scheduler})
    release = dp.run(made, tmp_path / "run", data=frame())
    assert abs(release.marginal(("a", "b")).sum() - frame().unit.nunique()) < 0.1


@pytest.mark.parametrize("given", [
    pytest.param(frame(), id="pandas", marks=pytest.mark.slow),
    pytest.param(dd.from_pandas(frame(), npartitions=3), id="dask", marks=pytest.mark.slow),
])  # fmt: skip
def test_frame_on_cluster_matches_counts(tmp_path, given):
    from distributed import Client, LocalCluster

    with (LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
          Client(workers) as client):  # fmt: skip
        frames_given = [given] if isinstance(given, pd.DataFrame) else [given, given.persist()]
        for one in frames_given:
            table = frame_table(one, DOMAIN, ["a", "b", "c"], ClusterEngine(client))
            counts = client.submit(lambda table: list(dp.count_marginals(table, SETS).values()), table).result()
            assert all(np.array_equal(own, right) for own, right in zip(counts, count_cells(frame()), strict=True))
        release = dp.run(make_job(tmp_path, engine={}), tmp_path / "run", client=client, data=frames_given[-1])
        data = {"domain": str(tmp_path / "domain.toml"), "where": "unit < 50"}
        some = dp.run(make_job(tmp_path, engine={}, data=data), tmp_path / "some", client=client, data=frames_given[-1])
    np.testing.assert_allclose(release.marginal(SETS[0]), count_cells(frame())[0], atol=0.01)
    np.testing.assert_allclose(some.marginal(SETS[0]), count_cells(frame().query("unit < 50"))[0], atol=0.01)


# The same twice


class UnstableSource:
    """A partition whose rows change from a given read on, as with an unseeded sample or a table being written."""

    def __init__(self, change):
        self.change, self.read = change, 0

    def __call__(self, part):
        self.read += 1
        return frame(seed=int(self.read >= self.change))


def make_unstable_frame(change):
    made = UnstableSource(change)
    return made, dd.from_delayed([dask.delayed(made, pure=False)(0)], meta=frame().iloc[:0], verify_meta=False)


def force_one_pass_per_set(monkeypatch):
    """Plan one data pass for each attribute set."""
    from dpscale.runs.stages import measure

    whole = measure.plan_passes
    monkeypatch.setattr(measure, "plan_passes", lambda domain, sets, *more: [
        one for names in sets for one in whole(domain, [names], *more)])  # fmt: skip


@pytest.mark.parametrize("change", [2, 3])
def test_changed_frame_is_refused_before_draw(tmp_path, monkeypatch, change):
    """The first read computes the fingerprint, and each later read follows a pass."""
    force_one_pass_per_set(monkeypatch)
    made, given = make_unstable_frame(change)
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=given)
    assert made.read == change
    if change == 2:  # before anything was drawn: nothing was charged, and nothing is left to go on with
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger, refused(dp.BudgetError):
            ledger.summary("frame")
        assert not (tmp_path / "run").exists()
        return
    drawn = measurements(tmp_path / "run")
    assert drawn  # of the passes before it alone
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=given)
    assert measurements(tmp_path / "run") == drawn


def test_changed_frame_is_measured_without_check(tmp_path, monkeypatch):
    """Planted fault: without the comparison with the first read, a changed frame is measured."""
    monkeypatch.setattr(frames, "content_of", lambda table: "alike")
    release = dp.run(make_job(tmp_path), tmp_path / "run", data=make_unstable_frame(2)[1])
    np.testing.assert_allclose(release.marginal(SETS[0]), count_cells(frame(seed=1))[0], atol=0.01)


def test_frame_modified_between_passes_is_refused(tmp_path, monkeypatch):
    from dpscale.runs import charge as charges

    columns, charge = {name: frame()[name].to_numpy().copy() for name in frame()}, charges.charge
    force_one_pass_per_set(monkeypatch)

    def charge_and_modify(*given, **more):
        charge(*given, **more)
        columns["b"][0] = (columns["b"][0] + 1) % 3  # pyarrow has the very same memory

    monkeypatch.setattr(charges, "charge", charge_and_modify)
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=pa.table(columns))


def test_run_on_frame_resumes_only_with_same_frame(tmp_path, monkeypatch):
    from dpscale.runs import runner
    from dpscale.runs.stages import measure

    with monkeypatch.context() as patch:
        patch.setattr(runner, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            dp.run(make_job(tmp_path), tmp_path / "run", data=frame())
    with refused(dp.DataError):
        measure.perform(open_part(tmp_path / "run"), LocalEngine("synchronous"))
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=frame(seed=1))
    release = dp.run(make_job(tmp_path), tmp_path / "run", data=pa.Table.from_pandas(frame()))
    assert release.manifest["secret"] == "destroyed"


# Repeated calls


def test_other_frame_does_not_reuse_answers(tmp_path):
    first = dp.run(make_job(tmp_path), tmp_path / "run", data=frame())
    again = dp.run(make_job(tmp_path), tmp_path / "run", data=pa.Table.from_pandas(frame()))
    assert again.manifest["release"] == first.manifest["release"]
    with refused(dp.DataError) as caught:
        dp.run(make_job(tmp_path), tmp_path / "run", data=frame().head(10))
    assert f"Release.open({str(tmp_path / 'run')!r})" in str(caught.value)
    assert "fresh=True" in str(caught.value)
    other = dp.run(make_job(tmp_path), tmp_path / "run", data=frame().head(10), fresh=True)
    assert other.path == tmp_path / "run-2"
    assert dp.Release.open(tmp_path / "run").manifest["release"] == first.manifest["release"]


def test_frame_without_fingerprint_key_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSCALE_STATE", str(tmp_path / "state"))
    dp.run(make_job(tmp_path), tmp_path / "run", data=frame())
    key = tmp_path / "state" / "frames.key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)  # others could test guesses with it
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=frame())
    key.unlink()
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=frame())
    dp.run(make_job(tmp_path), tmp_path / "other", data=frame(), fresh=True)  # makes another key
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=frame())
    manifest = open_part(tmp_path / "run").manifest
    open_part(tmp_path / "run").update(frame=None)
    with refused(dp.DataError):
        dp.run(make_job(tmp_path), tmp_path / "run", data=frame())
    assert manifest["release"] == dp.Release.open(tmp_path / "run").manifest["release"]


def test_fingerprint_cannot_be_tested_against_guesses(tmp_path):
    """Two releases of one frame have unrelated tags, and the run contains no unkeyed hash of the content."""
    runs = [dp.run(make_job(tmp_path), tmp_path / name, data=frame(), fresh=True) for name in ("one", "two")]
    tags = [one.manifest["frame"]["tag"] for one in runs]
    assert tags[0] != tags[1]
    content = content_of(as_arrow(frame(), ["a", "b", "c"]))
    guesses = {content, *(hashlib.sha256(f"{prefix}{content}".encode()).hexdigest() for prefix in ("", "frame\n"))}
    for one in runs:
        text = "".join(path.read_text(errors="ignore") for path in one.path.rglob("*") if path.is_file())
        assert not any(guess in text for guess in guesses)


# Identity


def test_content_hash_depends_on_values_only():
    plain = pd.DataFrame({"a": [1, 2, 3], "t": ["x", None, "yy"], "f": [0.5, np.nan, 1.0], "b": [True, False, True]})
    names = list(plain)
    first = content_of(as_arrow(plain, names))
    table = pa.Table.from_pandas(plain)
    equal_frames = [plain.assign(t=plain.t.astype("category")), pa.concat_tables([table[:1], table[1:]]),
             pa.concat_tables([table, table])[3:], plain.set_axis([7, 8, 9]),
             table.set_column(1, "t", table["t"].cast(pa.string()).dictionary_encode())]  # fmt: skip
    assert {content_of(as_arrow(one, names)) for one in equal_frames} == {first}
    other = [plain.iloc[::-1], plain.assign(a=[1, 2, 4]), plain.assign(t=["x", "", "yy"]), plain.assign(b=True),
             plain.assign(t=["xy", None, "y"]), plain.iloc[:2], plain.assign(f=[0.5, 0.0, 1.0])]  # fmt: skip
    assert len({first, *(content_of(as_arrow(one, names)) for one in other)}) == 1 + len(other)


def test_snapshot_depends_on_read_columns_only():
    engine = LocalEngine("synchronous")
    names = [snapshot(frame_table(one, DOMAIN, ["a", "b"], engine))
             for one in (frame(), frame().assign(c=0), frame().assign(b=0))]  # fmt: skip
    assert names[0] == names[1] != names[2]


# Refusals


@pytest.mark.parametrize("changes", [
    {"data": {"path": "x.parquet", "domain": "d"}},
    {"data": {"delimiter": ";", "domain": "d"}},
    {"tables": {}},
    {"privacy": {"privacy_cost": 1.0}},
])  # fmt: skip
def test_job_refuses_unexpected_frame(tmp_path, changes):
    with refused(dp.JobError):
        dp.run(make_job(tmp_path, **changes), tmp_path / "run", data=frame())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [
    [1, 2],
    frame()[["a", "b"]],
    frame().assign(c=[1, "SECRET"] * 200),
    frame().assign(c=[["SECRET"]] * 400),
    frame().assign(c=77),
])  # fmt: skip
def test_uncountable_frame_is_refused_without_leaking_values(tmp_path, given):
    with refused(dp.DataError) as caught:
        dp.run(make_job(tmp_path), tmp_path / "run", data=given)
    assert "SECRET" not in str(caught.value)
    assert "77" not in str(caught.value)


def test_columns_whose_arrow_values_are_no_values_are_refused(tmp_path):
    """Arrow gets addresses of the objects of Polars, so that equal ids differ, and numbers of periods of pandas."""
    polars = pytest.importorskip("polars")
    rows = frame()
    ids = [UUID(int=number % 3) for number in range(len(rows))]
    periods = rows.assign(person=pd.PeriodIndex((rows.a + 2000).astype(str), freq="Y"))
    objects = polars.from_pandas(rows).with_columns(polars.Series("person", ids, dtype=polars.Object))
    job = make_job(tmp_path)
    job["data"] |= {"privacy_unit": "person", "max_rows_per_unit": 1}
    for given in (objects, periods, pa.Table.from_pandas(periods), dd.from_pandas(rows, npartitions=2).a):
        with refused(dp.DataError):
            dp.run(job, tmp_path / "run", data=given, progress=None)
    periods.to_parquet(tmp_path / "periods.parquet")
    with refused(dp.DataError):
        dp.run(job | {"data": {**job["data"], "path": str(tmp_path / "periods.parquet")}}, tmp_path / "run")
    whole = dp.run(job, tmp_path / "run", data=rows.assign(person=ids), progress=None)
    assert whole.total().estimate == pytest.approx(3, abs=0.01)
