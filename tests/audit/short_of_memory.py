"""Measure stages under limits of address space: python -m tests.audit.short_of_memory LIMITS PLANTED RUN_DIR RUN_DIR.

All modules are imported first. A child without a limit measures the address space that a stage maps; then, for each
limit from nothing to slightly more than that, a child runs the stage of each run directory. The exit code and
stderr of each child are printed as JSON. With PLANTED, errors have their original texts.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path

STATUS = Path("/proc/self/status")
SECONDS = 20


def load() -> None:
    """Import all of dpscale and its late imports, so that no library is loaded under a limit."""
    import dask.threaded
    import pandas
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.parquet

    import dpscale

    for module in pkgutil.walk_packages(dpscale.__path__, "dpscale."):
        if module.name != "dpscale.__main__":
            importlib.import_module(module.name)
    assert dask.threaded
    assert pandas
    assert pyarrow.compute
    assert pyarrow.csv
    assert pyarrow.parquet


def address_space(name: str) -> int:
    """Return the bytes of address space in a line of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def keep_error_texts(rows: int) -> None:
    """Plant a fault: errors keep their original texts, with the number of rows of the table."""
    from dpscale.base import error_redaction

    error_redaction._redacted = lambda error, what: RuntimeError(f"{what}: {error} ({rows},)")


def count_rows(run: str) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.ParquetFile(Path(run).parent / "data" / "x.parquet").metadata.num_rows)


def run_child(run: str, extra: int | None, planted: bool) -> tuple[int, str, int]:
    """Return the exit code, stderr and the additional address space of a stage."""
    with tempfile.TemporaryDirectory() as place:
        again = Path(place) / "run"
        shutil.copytree(run, again)
        for ledger in Path(run).parent.glob("ledger.sqlite*"):
            ledger.unlink()
        files = [os.path.join(place, name) for name in ("stderr", "grown")]
        pid = os.fork()
        if pid == 0:
            run_stage_and_exit(str(again), extra, planted and count_rows(run), *files)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        errors, grown = (Path(name).read_text() if os.path.exists(name) else "" for name in files)
        return code, errors.replace(place, "PLACE"), int(grown or 0)


def run_stage_and_exit(run: str, extra: int | None, planted: int, errors: str, grown: str) -> None:
    signal.alarm(SECONDS)  # a library that cannot start a thread may wait for it for ever
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = 1
    try:
        if planted:
            keep_error_texts(planted)
        from dpscale.__main__ import main

        before = address_space("VmSize")
        if extra is not None:
            resource.setrlimit(resource.RLIMIT_AS, (before + extra, before + extra))
        try:
            main(["run", run, "--only", "measure", "--quiet", "--scheduler", "synchronous" if planted else "threads"])
        except SystemExit as error:
            code = int(error.code or 0)
        if extra is None:
            Path(grown).write_text(str(address_space("VmPeak") - before))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def main(limits: int, planted: bool, runs: list[str]) -> None:
    load()
    need = run_child(runs[0], None, False)[2]
    found = []
    for step in range(limits):
        extra = int(1.2 * need * ((step + 0.5) / limits) ** 2)  # what fails is where little is left
        found.append([run_child(run, extra, planted)[:2] for run in runs])
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "planted", sys.argv[3:])
