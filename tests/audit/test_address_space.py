"""A driver without address space fails with a text that depends on no record.

The memory use depends on the data, so the limit at which a stage fails is not hidden; only the text is tested.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

from dpscale.base.error_redaction import no_memory
from dpscale.job import Job
from tests.running import begin_table, run_stages

ROOT = Path(__file__).parents[2]
ROWS = 400_000
SENTENCE = f"dpscale: {no_memory()}; more: {no_memory().more}\n"
LIBRARIES = (  # what C and C++ say as they end a process, and SQLite of a map it does not get: nothing is counted in it
    r"cannot allocate memory for thread-local data: ABORT\n",
    r"LLVM ERROR: (out of memory|Unable to allocate section memory!)\n((Buffer a|A)llocation failed\n)?",
    r"terminate called after throwing an instance of '[\w:]+'\n(  what\(\):  [a-z_: ]+\n)?(terminate called rec\w+\n)*",
    r"(memory allocation of \d\d? bytes failed\n)+(skipping backtrace printing to avoid potential recursion\n)?",
    r"libgcc_s.so.1 must be installed for pthread_exit to work\n",
    r"dpscale: privacy.ledger: \S+/ledger.sqlite met a disk error \(disk I/O error\);[a-z ;,:.]+\n",
)
KIND_ALONE = re.compile(  # what Python or our hook says of a thread or a destructor, anywhere among the rest
    r"dpscale: a thread or a destructor failed with MemoryError\n"
    r"|Exception ignored in sys.unraisablehook: <function \w+ at 0x[0-9a-f]+>\nMemoryError\n"
)
ALLOWED = re.compile("|".join(["", re.escape(SENTENCE), *LIBRARIES]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Planned runs on a table and on a neighbouring table with a hundred more rows, one row per unit."""
    return [make_planned_run(tmp_path_factory.mktemp("rows"), rows) for rows in (ROWS, ROWS + 100)]


def make_planned_run(place, rows):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 4, rows), "b": rng.integers(0, 3, rows), "unit": np.arange(rows)})
    (place / "data").mkdir()
    frame.to_parquet(place / "data" / "x.parquet", index=False)
    domain = {name: {"kind": "coded", "size": size} for name, size in (("a", 4), ("b", 3))}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    job = {
        "data": {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 1},
        "privacy": {"privacy_cost": 0.5, "dataset": "memory"},
        "workload": [{"family": "marginal", "degree": 2}],
        "mechanism": {"name": "residual-planner"},
    }
    (place / "job.toml").write_text(tomli_w.dumps(job))
    run_stages(begin_table(Job.read(place / "job.toml"), place / "run"), only="plan")
    return place / "run"


def run_under_limits(limits, runs, planted=""):
    """Return the exit code and stderr of each run for each limit."""
    command = [sys.executable, "-m", "tests.audit.short_of_memory", str(limits), planted or "no", *map(str, runs)]
    settings = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, timeout=550, check=True)
    return [[(code, KIND_ALONE.sub("", text)) for code, text in both] for both in json.loads(done.stdout)]


@pytest.mark.slow
@pytest.mark.parametrize("limits", [10, 100])
def test_out_of_memory_texts_equal_on_neighbouring_tables(runs, limits):
    found = run_under_limits(limits, runs)
    outcomes = [outcome for both in found for outcome in both]
    assert [text for _, text in outcomes if not ALLOWED.fullmatch(text)] == []
    assert [code for code, _ in outcomes if code not in (0, 3, 75, 127) and code > 0] == []
    assert {text for code, text in outcomes if code == 75 and "ledger.sqlite" not in text} == {SENTENCE}
    assert {text for code, text in outcomes if code == 0} == {""}


@pytest.mark.slow
def test_planted_error_text_is_detected(runs):
    texts = [text for both in run_under_limits(20, runs, "planted") for _, text in both]
    assert any(not ALLOWED.fullmatch(text) for text in texts)
    numbers = [set(re.findall(r"\((\d+)[,)]", text)) for text in texts]
    assert any(one ^ other for one, other in zip(numbers[::2], numbers[1::2], strict=True)), texts
