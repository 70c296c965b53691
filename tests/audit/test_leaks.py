"""Exact counts and values of records appear in no file and no output of a run, also if it fails.

Each case runs in its own process with its own working and temporary directory; then all files in them (run
directory, ledger, scratch space of Dask) and all output are searched. The noise is so large that a noisy value is
rounded to a count by chance in fewer than one of 10,000 runs.
"""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

from dpscale.job import Job
from dpscale.ledger import Ledger
from tests.audit.leaks import BAD_NUMBER, BAD_TEXT, COUNTS, leaks_in, leaks_under, planted_frame
from tests.running import begin_table, run_stages

ROOT = Path(__file__).parents[2]

# Dask logs a traceback of its own if a worker's heartbeat meets a scheduler that is closing, as on a slow machine.
HEARTBEAT = re.compile(rb"Failed to communicate with scheduler during heartbeat.*?CommClosedError:", re.DOTALL)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The planted table, also with a bad number and with a bad text, outside the searched directories."""
    place = tmp_path_factory.mktemp("planted")
    frame = planted_frame()
    tables = {"good": frame, "number": frame.assign(a=frame.a.where(frame.index != 5, BAD_NUMBER)),
              "text": frame.assign(city=frame.city.where(frame.index != 5, BAD_TEXT))}  # fmt: skip
    for name, table in tables.items():
        (place / name).mkdir()
        for number, rows in enumerate(np.array_split(np.arange(len(table)), 3)):
            table.iloc[rows].to_parquet(place / name / f"{number}.parquet", index=False)
    return place


def write_csv(place, name):
    """Write one of the tables as a CSV file."""
    path = place / f"{name}.csv"
    pd.concat([pd.read_parquet(part) for part in sorted((place / name).glob("*.parquet"))]).to_csv(path, index=False)


def write_job(place, table, mechanism="query-smasher", **privacy):
    domain = {"a": {"kind": "coded", "size": 2}, "city": {"kind": "categories", "values": ["Z", "Q"]}}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    job = {
        "data": {"path": str(table), "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 2},
        "privacy": {"privacy_cost": 1e-12, "dataset": "planted"} | privacy,
        "workload": [{"family": "prefix", "degree": 2}],
        "mechanism": {"name": mechanism},
        "engine": {"seed": 3},
    }
    path = place / "job.toml"
    path.write_text(tomli_w.dumps(job))
    return path


def run_in_process(place, *command, limit=None):
    """Run a command in `place` and return its exit code and output."""
    (place / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {"TMPDIR": str(place / "tmp"), "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}

    def set_file_limit():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    result = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=place, env=environment, timeout=120,
                            capture_output=True, preexec_fn=set_file_limit)  # fmt: skip
    return result.returncode, result.stdout + result.stderr


def assert_no_leaks(place, output):
    assert leaks_in(output) == [], output.decode(errors="replace")[-3000:]
    assert leaks_under([place]) == {}


def slow_case(*values):
    """Return a case of the long form only."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "mechanism", ["query-smasher", slow_case("aim-grem"), slow_case("residual-planner"), slow_case("identity")]
)
def test_whole_run_leaks_nothing(tmp_path, data, mechanism):
    job = write_job(tmp_path, data / "good", mechanism)
    code, output = run_in_process(tmp_path, "dpscale", "run", job, "--run-dir", "run", "--json")
    assert code == 0, output
    assert_no_leaks(tmp_path, output)


@pytest.mark.parametrize(
    ("table", "scheduler"),
    [slow_case("number", "threads"), ("text.csv", "threads"), ("text", "processes"), slow_case("number", "processes"),
     slow_case("text", "threads"), slow_case("number.csv", "threads"), slow_case("number.csv", "processes")],
)  # fmt: skip
def test_bad_value_leaks_nothing(tmp_path, data, table, scheduler):
    if table.endswith(".csv"):
        write_csv(data, table.removesuffix(".csv"))
    job = write_job(tmp_path, data / table)
    code, output = run_in_process(tmp_path, "dpscale", "run", job, "--run-dir", "run", "--scheduler", scheduler)
    assert code == 2, output
    assert_no_leaks(tmp_path, output)


@pytest.mark.parametrize("limit", [slow_case(300), 900, slow_case(1500), 3000, slow_case(20_000)])
def test_full_disk_leaks_nothing(tmp_path, data, limit):
    job = write_job(tmp_path, data / "good")
    code, output = run_in_process(tmp_path, "dpscale", "run", job, "--run-dir", "run", limit=limit)
    assert code != 0, output
    assert_no_leaks(tmp_path, output)


@pytest.mark.parametrize("name", ["measurements", slow_case("answers"), slow_case("report.html"), "secret.partial"])
def test_unwritable_path_leaks_nothing(tmp_path, data, name):
    """Root can write everywhere, so a file or a directory occupies the path instead."""
    job = write_job(tmp_path, data / "good")
    run_stages(begin_table(Job.read(job), tmp_path / "run"), only="plan")
    taken = tmp_path / "run" / name
    if "." in name:
        taken.mkdir()
    else:
        taken.write_text("")
    code, output = run_in_process(tmp_path, "dpscale", "run", job, "--run-dir", "run")
    assert code != 0, output
    assert_no_leaks(tmp_path, output)


def test_refused_budget_leaks_nothing(tmp_path, data):
    job = write_job(tmp_path, data / "good")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("planted", 1e-12, 1e-9)
    code, output = run_in_process(tmp_path, "dpscale", "run", job, "--run-dir", "run")
    assert code == 3, output
    assert_no_leaks(tmp_path, output)


@pytest.mark.parametrize(
    ("mechanism", "how"),
    [slow_case("query-smasher", "done"), slow_case("query-smasher", "disk"), slow_case("query-smasher", "killed"),
     slow_case("query-smasher", "memory"), ("aim-grem", "done"), slow_case("aim-grem", "disk")],
)  # fmt: skip
def test_cluster_run_leaks_nothing(tmp_path, data, mechanism, how):
    job = write_job(tmp_path, data / "good", mechanism)
    code, output = run_in_process(tmp_path, "tests.audit.cluster_run", job, "run", how)
    assert code == 0, output.decode()[-3000:]
    assert b"worker logs" in output
    own = HEARTBEAT.sub(b"", output)
    assert (b"Traceback" in own) == (how in ("disk", "memory"))  # tasks of lost workers run again
    assert_no_leaks(tmp_path, output)


# ---- the checker itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "leak",
    [b"313378 rows", b"got 313,378", b'{"count": 313378}', b"shape (2, 313378)", b"313378.0", b"array([313378, 5])",
     b"=313378\n", b"x" + np.int64(313378).tobytes(), np.float64(313378).tobytes() + b"y",
     b"value 987654321 is outside", BAD_TEXT.encode(), np.array([1, 313378], dtype="<i8").tobytes()],
)  # fmt: skip
def test_search_finds_leak(leak):
    assert leaks_in(b"some text; " + leak)


@pytest.mark.parametrize(
    "noise", [b"313378.25", b"1313378", b"3133780", b"0.313378", b"a313378f", b"313,378.5", b"1,313378"]
)
def test_search_ignores_noisy_values(noise):
    assert leaks_in(noise) == []


def test_planted_leak_in_error_is_detected(tmp_path, data):
    """An error of dpscale with a count passes redaction, so the search must find it."""
    job = write_job(tmp_path, data / "good")
    (tmp_path / "leaky.py").write_text(
        "from dpscale import __main__ as commands\n"
        "from dpscale.runs.stages import measure\n"
        "from dpscale.base.errors import DataError\n"
        "def fail(counts):\n"
        "    raise DataError('data', f'{int(counts.sum())} rows in {counts!r}')\n"
        "count = measure.Source.count\n"
        "def first(source, one, checked=()):\n"
        "    source.engine.map(fail, [(handle,) for handle in count(source, one, checked)], 'check')\n"
        "measure.Source.count = first\n"
        f"commands.main(['run', {str(job)!r}, '--run-dir', 'run', '--scheduler', 'threads'])\n"
    )
    _, output = run_in_process(tmp_path, "leaky")
    assert {"719718", "200111"} & set(leaks_in(output)), output


def test_planted_leak_in_file_is_detected(tmp_path):
    (tmp_path / "spilled").write_bytes(np.array(COUNTS, dtype=np.int64).tobytes())
    assert leaks_under([tmp_path])
