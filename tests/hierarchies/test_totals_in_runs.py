"""Runs with public totals: estimates, rows, files in the run directory, evidence and refused jobs."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.sensitivities import norms, strategy_faults
from dpscale.base.errors import DomainError, JobError, PlanError
from tests.audit.composition import audit_run
from tests.hierarchies.small import check_evidence, domain_of
from tests.messages import refused

SIZES = {"place": (3, 7, 20)}


def frame_of(rows=4000):
    rng = np.random.default_rng(3)
    place = rng.integers(0, 20, rows) * rng.integers(0, 2, rows)
    age = (place + rng.integers(0, 2, rows)) % 4
    return pd.DataFrame({"place": [f"place {i}" for i in place], "age": age, "sex": rng.integers(0, 2, rows)})


def write_job(folder, totals, **sections):
    """Write data, domain and the true totals of some sets; return the job."""
    domain, frame = domain_of(SIZES, age=4, sex=2), frame_of()
    frame.to_parquet(folder / "data.parquet")
    (folder / "domain.toml").write_text(tomli_w.dumps(domain.to_dict()))
    own = domain.hierarchies[0]
    cell = frame.place.map({label: i for i, label in enumerate(domain["place"].labels)})
    for level in own.names[:-1]:
        frame[level] = [domain[level].labels[i] for i in own.ancestors(level)[cell]]
    tables = []
    for number, names in enumerate(totals):
        every = pd.MultiIndex.from_product([domain[name].labels for name in names], names=names)
        counts = frame.groupby(list(names)).size().reindex(every if len(names) > 1 else every.get_level_values(0))
        path = folder / f"totals-{number}.csv"
        counts.fillna(0).astype(int).rename("count").rename_axis(list(names)).reset_index().to_csv(path, index=False)
        tables.append({"path": str(path), "attributes": list(names), "origin": "external"})
    job = {"data": {"path": str(folder / "data.parquet"), "domain": str(folder / "domain.toml")},
           "privacy": {"epsilon": 1.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite")},
           "workload": [{"family": "marginal", "attributes": [["country", "age"], ["region", "sex"], ["place"]]}],
           "engine": {"scheduler": "synchronous", "seed": 1}, "totals": tables}  # fmt: skip
    return {**job, **sections}, domain, frame


def exact_table(domain, frame, names):
    found = np.zeros(domain.shape(names), np.int64)
    cells = [frame[name].map({label: i for i, label in enumerate(domain[name].labels)}) for name in names]
    np.add.at(found, tuple(cells), 1)
    return found


@pytest.mark.parametrize("sections", [
    {},
    {"reconstruct": {"method": "maxent"}},
    {"mechanism": {"name": "aim-grem"}},
], ids=["least squares", "maxent", "aim-grem"])  # fmt: skip
def test_every_estimate_has_the_totals(tmp_path, sections):
    job, domain, frame = write_job(tmp_path, [("region",), ("age",)], **sections)
    release = dp.run(job, run_dir=tmp_path / "run")
    for names, inside in ((("region",), ("region",)), (("age",), ("age",)), (("country", "age"), ("age",)),
                          (("country", "age"), ("country",)), (("region", "sex"), ("region",)),
                          (("place",), ("country",))):  # fmt: skip
        table = release.marginal(names)
        if inside[0] in names:
            table = table.sum(axis=tuple(i for i, name in enumerate(names) if name not in inside))
        else:
            own = domain.hierarchies[0].ancestors(inside[0])
            table = np.bincount(own, table)
        np.testing.assert_allclose(table, exact_table(domain, frame, inside), atol=1e-6, rtol=1e-9)


@pytest.mark.parametrize("sets", [[["age", "sex"], ["place"]], [["sex"], ["place"]]], ids=["inside", "alone"])
def test_graphical_estimates_have_the_total_and_its_table(tmp_path, sets):
    """The plan does not measure what follows from the totals, so the model takes it from them."""
    sections = {"reconstruct": {"method": "graphical"}, "workload": [{"family": "marginal", "attributes": sets}],
                "privacy": {"epsilon": 20.0, "delta": 1e-6, "ledger": str(tmp_path / "ledger.sqlite"),
                            "allow_weak_privacy": True}}  # fmt: skip
    job, domain, frame = write_job(tmp_path, [("age",)], synthesize={}, **sections)
    release = dp.run(job, run_dir=tmp_path / "run")
    for names in sets:
        assert np.abs(release.marginal(names) - exact_table(domain, frame, names)).max() < 5
    assert release.total().estimate == pytest.approx(len(frame))
    assert abs(len(release.synthetic()) - len(frame)) <= 1
    if "age" in sets[0]:
        assert np.allclose(release.marginal(["age"]), exact_table(domain, frame, ["age"]))


def test_known_tables_are_no_candidates(tmp_path):
    workload = [{"family": "marginal", "attributes": [["region", "age", "sex"]]}]
    job, _, _ = write_job(tmp_path, [("region", "age")], mechanism={"name": "aim-grem"}, workload=workload)
    release = dp.run(job, run_dir=tmp_path / "run")
    pairs = [names for names in release.plan.candidates if len(names) == 2]
    assert ("age", "region") not in [tuple(sorted(names)) for names in pairs]
    assert ("age", "country") not in [tuple(sorted(names)) for names in pairs]
    assert ("region", "sex") in [tuple(sorted(names)) for names in pairs]


def test_levels_that_are_planned_alone_are_refused(tmp_path):
    job, _, _ = write_job(tmp_path, [("region",)], mechanism={"name": "residual-planner"})
    with refused(PlanError):
        dp.run(job, run_dir=tmp_path / "run")


def test_rows_have_the_totals(tmp_path):
    job, domain, frame = write_job(tmp_path, [("region",), ("age",)], synthesize={"rows": 4000})
    rows = dp.run(job, run_dir=tmp_path / "run").synthetic().compute()
    for name in ("region", "age"):
        counts = rows[name].astype(str).value_counts().reindex([str(one) for one in domain[name].labels], fill_value=0)
        assert np.abs(counts.to_numpy() - exact_table(domain, frame, (name,))).max() <= 12


@pytest.mark.parametrize("totals", [[("region",), ("age",)], [("country", "age")]])
def test_published_tables_have_the_totals(tmp_path, totals):
    job, domain, frame = write_job(tmp_path, totals)
    release = dp.run(job, run_dir=tmp_path / "run")
    done = CliRunner().invoke(main, ["publish", str(release.path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    tables = {
        tuple(path.stem.split("-")[1:]): pd.read_csv(path, dtype=str) for path in (tmp_path / "out/csv").iterdir()
    }
    for names in totals:
        own = next(table for key, table in tables.items() if set(names) <= set(key))
        counts = own.assign(count=own["count"].astype(int)).groupby(list(names))["count"].sum()
        exact = frame.astype(str).groupby(list(names)).size()
        assert (counts[counts > 0].sort_index() == exact.sort_index()).all()
    place = tables[("place",)].set_index("place")["count"].astype(int)
    of = dict(zip(domain["place"].labels, domain.hierarchies[0].ancestors("country"), strict=True))
    sums = np.bincount([of[label] for label in place.index], place)
    np.testing.assert_array_equal(sums, exact_table(domain, frame, ("country",)))


def test_run_is_read_without_the_files(tmp_path):
    job, domain, frame = write_job(tmp_path, [("region",)])
    dp.run(job, run_dir=tmp_path / "run")
    (tmp_path / "totals-0.csv").unlink()
    release = dp.Release.open(tmp_path / "run")
    np.testing.assert_allclose(release.marginal(("region",)), exact_table(domain, frame, ("region",)))
    check_evidence(tmp_path / "run")
    audited = audit_run(tmp_path / "run", tmp_path / "ledger.sqlite")
    assert not audited.faults
    assert 0 < audited.drawn <= audited.paid


def test_negative_multipliers_are_found():
    """Their signed sum is less than their L1 norm; no honest strategy has them."""
    packed = lambda values: base64.b64encode(zlib.compress(np.array(values, "<i8").tobytes())).decode()  # noqa: E731
    forged = {"kind": "tree", "shape": [3], "parents": [packed([0, 0]), packed([0, 0, 1])], "spread": None, "known": -1,
              "multipliers": [packed([1000]), packed([-1000, -1000]), packed([1, 1, 1])]}  # fmt: skip
    assert norms(forged) == (2_000_001, 2001)
    assert [*strategy_faults({"one": forged})]


@pytest.mark.parametrize("forged", ["multipliers", "parents", "known"])
def test_forged_strategy_on_a_tree_is_found(tmp_path, forged):
    job, _, _ = write_job(tmp_path, [("region",)])
    dp.run(job, run_dir=tmp_path / "run")
    check_evidence(tmp_path / "run")
    place = tmp_path / "run/evidence/strategies.json"
    content = json.loads(place.read_text())
    tree = next(one for one in content["factors"].values() if one["kind"] == "tree")
    if forged == "known":
        tree["known"] = 0
    else:
        values = np.frombuffer(zlib.decompress(base64.b64decode(tree[forged][-1])), "<i8")
        changed = values // 2 if forged == "multipliers" else values[::-1]
        tree[forged][-1] = base64.b64encode(zlib.compress(np.ascontiguousarray(changed).tobytes())).decode()
    place.write_text(json.dumps(content))
    found = subprocess.run([sys.executable, "recompute.py"], cwd=place.parent, capture_output=True, text=True)
    assert found.returncode
    assert "strategy" in found.stdout + found.stderr


def test_same_records_are_stated(tmp_path):
    job, _, _ = write_job(tmp_path, [("region",)])
    job["totals"][0]["origin"] = "same records"
    run = tmp_path / "run"
    dp.run(job, run_dir=run)
    sentence = "between databases that agree on the public totals of region"
    assert sentence in (run / "report.html").read_text()
    check_evidence(run)
    assert sentence in (run / "evidence/checklist.json").read_text()
    shown = CliRunner().invoke(main, ["ledger", "show", str(tmp_path / "ledger.sqlite")])
    assert sentence in " ".join(shown.output.split())
    assert sentence in json.loads((run / "evidence/ledger.json").read_text())["chain"]["opened"]["facts"]["condition"]


@pytest.mark.parametrize(("change", "error"), [
    ({"attributes": ["planet"]}, DomainError),
    ({"origin": "elsewhere"}, JobError),
    ({"path": "missing.csv"}, DomainError),
    ({"column": "population"}, DomainError),
])  # fmt: skip
def test_wrong_totals_are_refused(tmp_path, change, error):
    job, _, _ = write_job(tmp_path, [("region",)])
    job["totals"][0] |= change
    with refused(error):
        dp.run(job, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists() or not (tmp_path / "run/measurements").exists()


def test_totals_that_contradict_each_other_are_refused(tmp_path):
    job, _, _ = write_job(tmp_path, [("region",), ("country",)])
    path = tmp_path / "totals-1.csv"
    counts = pd.read_csv(path)
    counts.loc[1, "count"] += 1
    counts.to_csv(path, index=False)
    with refused(DomainError):
        dp.run(job, run_dir=tmp_path / "run")


def test_totals_of_rows_are_refused_beside_a_bound(tmp_path):
    job, _, _ = write_job(tmp_path, [("region",)])
    job["data"] |= {"privacy_unit": "age", "max_rows_per_unit": 3}
    with refused(JobError):
        dp.run(job, run_dir=tmp_path / "run")
