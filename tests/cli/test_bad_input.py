"""Invalid input on the command line: one sentence, exit code 2 (3 for a refused budget) and no charge."""

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.engine import schedulers
from dpscale.runs import source
from tests.messages import refused
from tests.runs.small import DOMAIN, job, table, write_job, write_table


def run_command(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def assert_refused(place, path, *says, code=2, command="run"):
    """Check that the command fails with one sentence containing `says` and that the ledger has no dataset; return
    stderr.
    """
    extra = {"run": ["--run-dir", place / "run", "--quiet"], "plan": ["--quiet"]}.get(command, [])
    result = run_command(command, path, *extra)
    assert result.exit_code == code, result.output
    sentences = [line for line in result.stderr.splitlines() if not line.startswith("dpscale: warning: ")]
    assert len(sentences) == 1
    assert sentences[0].startswith("dpscale: ")
    assert "Traceback" not in result.output
    for part in says:
        assert part in result.stderr
    ledger = place / "ledger.sqlite"
    if ledger.exists() and code == 2:
        from dpscale.ledger import Ledger

        with Ledger.open(ledger) as opened:
            assert opened.summary()["datasets"] == {}
    assert not list((place / "run" / "measurements").glob("*.parquet"))
    return result.stderr


DATA = {"path": "data", "domain": "domain.toml"}
MARGINAL = {"family": "marginal", "degree": 2}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dta": {}}, ["dta", "unknown key", "'data'"]),
        ({"data": DATA | {"pth": "x"}}, ["data.pth", "'path'"]),
        ({"data": {"path": "data"}}, ["data.domain", "missing"]),
        ({"data": DATA | {"privacy_unit": "person"}}, ["max_rows_per_unit"]),
        ({"data": DATA | {"privacy_unit": "person", "max_rows_per_unit": 0}}, ["max_rows_per_unit", "0"]),
        ({"workload": [{"family": "marginl", "degree": 1}]}, ["marginl", "'marginal'"]),
        ({"workload": [{"family": "marginal", "degree": 9}]}, ["workload.degree", "9", "4"]),
        ({"workload": [{"family": "marginal"}]}, ["degree", "attributes"]),
        ({"workload": [{"family": "marginal", "attributes": [["agee"]]}]}, ["'agee'", "'age'"]),
        ({"workload": [{"family": "marginal", "degree": 1, "weight": -1}]}, ["weight", "-1"]),
        ({"workload": [MARGINAL | {"degre": 1}]}, ["degre", "'degree'"]),
        ({"workload": [MARGINAL | {"file": "x.npy"}]}, ["workload.file", "predicates"]),
        ({"workload": [{"family": "predicates", "attributes": [["age"]], "file": "none.npy"}]}, ["none.npy"]),
        ({"workload": []}, ["workload"]),
        ({"mechanism": {"noise": "laplace"}}, ["mechanism.noise", "gap, seconds"]),
        ({"mechanism": {"name": "hdmm", "each": 1}}, ["mechanism.each", "expected way"]),
        ({"mechanism": {"name": "query-smash"}}, ["mechanism.name", "'query-smasher'"]),
        ({"privacy": {"epsilon": 0.0, "delta": 1e-9}}, ["privacy.epsilon", "0.0"]),
        ({"privacy": {"epsilon": -1.0, "delta": 1e-9}}, ["privacy.epsilon", "-1.0"]),
        ({"privacy": {"epsilon": 1.0, "delta": 0.0}}, ["privacy.delta", "leave delta out"]),
        ({"privacy": {"epsilon": 1.0, "delta": 1.0}}, ["privacy.delta", "1.0"]),
        ({"privacy": {"rho": 1.0, "delta": 1e-9}}, ["delta", "epsilon alone"]),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-9, "rho": 1.0}}, ["rho"]),
        ({"privacy": {"dataset": "d"}}, ["epsilon"]),
        ({"privacy": {"epsilon": 1.0, "dataset": "a\nb"}}, ["privacy.dataset", "printable"]),
        ({"privacy": {"epsilon": 1.0, "dataset": " "}}, ["privacy.dataset", "printable"]),
        ({"privacy": {"epsilon": 1.0, "ledger": "data"}}, ["privacy.ledger", "is a folder"]),
        ({"privacy": {"epsilon": 1.0, "ledger": "/dev/null"}}, ["privacy.ledger", "is a device"]),
        ({"privacy": {"epsilon": 1.0, "ledger": "data/part-0001.parquet"}}, ["privacy.ledger", "not a SQLite file"]),
        ({"privacy": {"epsilon": 1.0, "ledger": "no/such/ledger"}}, ["privacy.ledger", "cannot be created"]),
        ({"data": DATA | {"privacy_unit": "", "max_rows_per_unit": 1}}, ["data.privacy_unit"]),
        ({"data": DATA | {"domain": "a\0b"}}, ["data.domain: a text with a character"]),
        ({"data": DATA | {"path": "a\0b"}}, ["data.path: a text with a character"]),
        ({"privacy": {"epsilon": 1.0, "ledger": "a\0b"}}, ["privacy.ledger: a text with a character"]),
        ({"workload": [MARGINAL | {"weight": 0.0}]}, ["workload.weight", "0 for every query"]),
        ({"workload": [MARGINAL | {"weight": "much"}]}, ["workload.0.weight"]),
        ({"workload": [{"family": "marginal", "degree": True}]}, ["degree", "True"]),
        ({"privacy": {"epsilon": "1.0", "delta": 1e-9}}, ["privacy.epsilon", "'1.0'"]),
        ({"privacy": {"epsilon": True, "delta": 1e-9}}, ["privacy.epsilon", "True"]),
        ({"engine": {"memory": "lots"}}, ["engine.memory", "lots", "4GiB"]),
        ({"engine": {"scheduler": "dragons"}}, ["engine.scheduler", "dragons", "threads"]),
        ({"engine": {"memory": "1kB"}}, ["engine.memory", "1000 bytes"]),
        ({"privacy": {"privacy_cost": 1e-70}}, ["budget"]),
        ({"data": DATA | {"path": "nowhere/*.parquet"}}, ["data.path", "nowhere"]),
        ({"data": DATA | {"domain": "nothing.toml"}}, ["domain", "nothing.toml"]),
        ({"data": DATA | {"privacy_unit": "persn", "max_rows_per_unit": 1}}, ["persn", "one of person, age"]),
    ],
)
def test_invalid_job_is_refused(place, changes, says):
    assert_refused(place, write_job(place, **changes), *says)


@pytest.mark.parametrize("where", ["data.path", "data.domain", "privacy.ledger", "privacy.dataset", "engine.scheduler"])
@pytest.mark.parametrize("text", ["\ud800", "a\0"])
def test_text_that_cannot_be_stored_is_refused(tmp_path, where, text):
    table, name = where.split(".")
    content = job(data=dict(DATA))
    content[table] = content[table] | {name: text}
    with refused(dp.JobError):
        dp.run(content, tmp_path / "run")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", 123, b"run", ["run"], ("run",)])
def test_invalid_path_is_refused(place, path):
    for act in (lambda: dp.run(write_job(place), path), lambda: dp.Release.open(path), lambda: dp.run(path)):
        with pytest.raises(dp.JobError) as refused:
            act()
        assert "\n" not in str(refused.value)
    with pytest.raises(dp.DomainError if not isinstance(path, str) else dp.JobError):
        dp.Domain.read(path)


def test_run_directory_none_or_too_deep_is_refused(place):
    with refused(dp.JobError):
        dp.Release.open(None)
    with refused(dp.JobError):
        dp.run(write_job(place), "a/" * 2000)


def test_invalid_cap_is_refused(place):
    cap = ["ledger", "cap", place / "l.sqlite", "--dataset", "d", "--epsilon", 1, "--delta", 1e-9]
    wrong = ([*cap[:5], "--epsilon", "nan", "--delta", 0], [*cap[:7], "--delta", 2], [*cap[:6], 1e308, *cap[7:]],
             [*cap, "--unit", ""], [*cap[:4], "a\nb", *cap[5:]])  # fmt: skip
    for arguments in wrong:
        result = run_command(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), (arguments, result.output, result.exception)
    assert run_command("ledger", "show", place / "nowhere.sqlite").exit_code == 2


def test_run_of_older_version_is_refused_without_suggesting_new_run(place):
    """A new run would spend the budget again; the message points to the answer files instead."""
    import json

    release = dp.run(write_job(place), place / "run")
    manifest = release.manifest | {"version": 1}
    (release.path / "manifest.json").write_text(json.dumps(manifest))
    result = run_command("evidence", place / "run")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    with pytest.raises(dp.JobError) as refused:
        dp.Release.open(place / "run")
    for message in (result.stderr, str(refused.value)):
        assert "created by another version of dpscale" in message
        assert "read the files in answers/" in message
        assert "new run" not in message


def test_missing_or_invalid_job_file_is_refused(place):
    (place / "job.toml").write_text("[data\npath = 1")
    assert_refused(place, place / "job.toml", "job.toml", "not TOML")
    assert_refused(place, place / "other.toml", "other.toml")


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ({"kind": "integer", "low": 3, "high": 1}, ["attributes.age.high", "1"]),
        ({"kind": "integer", "low": 3, "high": 3}, ["attributes.age", "size 1", "omit the attribute"]),
        ({"kind": "intger", "low": 3, "high": 9}, ["attributes.age.kind", "'integer'"]),
        ({"kind": "integer", "low": 3, "high": 9, "outside": "clp"}, ["attributes.age.outside", "'clip'"]),
        ({"kind": "integer", "low": 3}, ["attributes.age.high", "missing"]),
        ({"kind": "bins", "edges": [3, 2]}, ["attributes.age.edges", "increasing"]),
        ({"kind": "categories", "values": ["a", "a"]}, ["attributes.age.values", "twice"]),
        ({"kind": "categories", "values": ["a", "b"], "outside": "clip"}, ["attributes.age.outside"]),
    ],
)
def test_invalid_domain_file_is_refused(place, attribute, says):
    path = write_job(place)
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": DOMAIN["attributes"] | {"age": attribute}}))
    assert_refused(place, path, *says)


def write_changed_job(place, change):
    frame = table()
    write_table(place / "data", change(frame))
    return write_job(place)


def test_missing_column_is_refused(place):
    """The column names of the file are not printed because they may be a record."""
    text = assert_refused(
        place, write_changed_job(place, lambda f: f.rename(columns={"sex": "sexx"})), "'sex'", "it has age, income"
    )
    assert "sexx" not in text
    assert "person" not in text


def test_value_outside_domain_is_refused_without_printing_it(place):
    path = write_changed_job(place, lambda f: f.assign(code=np.where(f.index == 77, 987654, f.code)))
    text = assert_refused(place, path, "'code'", "outside the domain", "clip")
    assert "987654" not in text
    assert "77" not in text


def test_nulls_are_refused(place):
    path = write_changed_job(place, lambda f: f.assign(sex=f.sex.where(f.index != 5)))
    assert_refused(place, path, "'sex'", "null", 'nulls = "category"')


def test_empty_table_is_answered_with_noise_on_request(place):
    """Without the request nothing is charged."""
    path = write_job(place, data={**job()["data"], "where": "age = 99"})
    assert_refused(place, path, "no row that is counted", "--empty")
    result = run_command("run", path, "--run-dir", place / "run", "--empty")
    assert result.exit_code == 0, result.output


def test_unreadable_file_is_named(place):
    path = write_job(place)
    (place / "data" / "part-0001.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")
    assert_refused(place, path, "part-0001.parquet")


def test_too_large_set_is_refused_before_reading(place):
    path = write_job(place, engine={"memory": "1kB"}, data=DATA | {"path": "not-there"})
    assert_refused(place, path, "engine.memory", command="plan")


def test_run_directory_of_other_job_is_refused(place):
    assert run_command("run", write_job(place), "--run-dir", place / "run").exit_code == 0
    other = write_job(place, "other.toml", privacy={"epsilon": 2.0, "delta": 1e-9})
    result = run_command("run", other, "--run-dir", place / "run")
    assert result.exit_code == 2
    assert "another job" in result.stderr


def test_directory_without_run_is_refused(place):
    path = write_job(place)
    result = run_command("run", path, "--run-dir", place / "data")
    assert result.exit_code == 2
    assert "inside the data folder" in result.stderr
    (place / "other").mkdir()
    (place / "other" / "notes.txt").touch()
    result = run_command("run", path, "--run-dir", place / "other")
    assert result.exit_code == 2
    assert "not a run directory" in result.stderr
    assert run_command("run", place / "data", "--only", "measure").exit_code == 2


def test_keyboard_interrupt_explains_how_to_resume(place, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(source, "run_pass", interrupt)
        result = run_command("run", write_job(place), "--run-dir", place / "run")
    assert result.exit_code == 75
    assert "(without --fresh) resumes" in result.stderr
    assert run_command("run", place / "job.toml", "--run-dir", place / "run").exit_code == 0


def test_impossible_run_directory_is_refused(place):
    result = run_command("run", write_job(place), "--run-dir", "/proc/nowhere/run")
    assert result.exit_code == 2
    assert "cannot create" in result.stderr


def test_job_edited_in_run_directory_is_refused(place):
    path = write_job(place)
    assert run_command("plan", path, "--run-dir", place / "run").exit_code == 0
    inside = place / "run" / "job.toml"
    inside.write_text(inside.read_text().replace("epsilon = 1.0", "epsilon = 5.0"))
    for arguments in (["run", place / "run", "--only", "measure"], ["run", path, "--run-dir", place / "run"]):
        result = run_command(*arguments)
        assert result.exit_code == 2
        assert "was edited" in result.stderr
    assert not (place / "ledger.sqlite").exists()


def test_stage_before_its_predecessor_is_refused(place):
    assert run_command("plan", write_job(place), "--run-dir", place / "run").exit_code == 0
    result = run_command("run", place / "run", "--only", "reconstruct")
    assert result.exit_code == 2
    assert "--only measure` first" in result.stderr


def test_refused_budget_gives_exit_code_3(place):
    path = write_job(place)
    assert run_command(
        "ledger", "cap", place / "ledger.sqlite", "--dataset", "small", "--epsilon", 0.5, "--delta", 1e-9
    )
    text = assert_refused(place, path, "0.5", code=3)
    assert "epsilon" in text


def test_refused_budget_reads_no_data(place, monkeypatch):
    path = write_job(place)
    run_command("ledger", "cap", place / "ledger.sqlite", "--dataset", "small", "--epsilon", 0.5, "--delta", 1e-9)
    monkeypatch.setattr(source, "run_pass", None)
    assert_refused(place, path, "0.5", code=3)


def test_missing_scheduler_is_transient_failure(place, monkeypatch):
    monkeypatch.setattr(schedulers, "CONNECT_SECONDS", 1)
    path = write_job(place)
    result = run_command("run", path, "--run-dir", place / "run", "--scheduler", "tcp://127.0.0.1:1")
    assert result.exit_code == 75
    assert "127.0.0.1:1" in result.stderr


def test_file_without_column_is_named(place):
    frame = pd.read_parquet(place / "data" / "part-0002.parquet").drop(columns="code")
    frame.to_parquet(place / "data" / "part-0002.parquet")
    assert_refused(place, write_job(place), "'code'", "part-0002.parquet")
