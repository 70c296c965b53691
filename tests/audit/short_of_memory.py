"""Measure stages under limits of address space: python -m tests.audit.short_of_memory LIMITS PLANTED RUN_DIR RUN_DIR.

Everything is imported first. Then a child without a limit tells how much more a stage maps, and of every limit between
nothing and a little more than that two children make the stage of one run directory each. Printed: exit code and
stderr of every child, as JSON. Planted: errors keep their texts.
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
    """Import all of dpscale, and what it imports late: no library is mapped under a limit."""
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


def mapped(name: str) -> int:
    """Bytes of address space, by a line of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def tell_everything(rows: int) -> None:
    """The planted fault: errors as their makers word them, with the size of the table that was in sight of them."""
    from dpscale.base import error_redaction

    error_redaction._redacted = lambda error, what: RuntimeError(f"{what}: {error} ({rows},)")


def rows_of(run: str) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.ParquetFile(Path(run).parent / "data" / "x.parquet").metadata.num_rows)


def child(run: str, extra: int | None, planted: bool) -> tuple[int, str, int]:
    """Exit code, stderr, and what the stage mapped more than there was."""
    with tempfile.TemporaryDirectory() as place:
        again = Path(place) / "run"
        shutil.copytree(run, again)
        for ledger in Path(run).parent.glob("ledger.sqlite*"):
            ledger.unlink()
        files = [os.path.join(place, name) for name in ("stderr", "grown")]
        pid = os.fork()
        if pid == 0:
            work(str(again), extra, planted and rows_of(run), *files)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told, grown = (Path(name).read_text() if os.path.exists(name) else "" for name in files)
        return code, told.replace(place, "PLACE"), int(grown or 0)


def work(run: str, extra: int | None, planted: int, told: str, grown: str) -> None:
    signal.alarm(SECONDS)  # a library that cannot start a thread may wait for it for ever
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = 1
    try:
        if planted:
            tell_everything(planted)
        from dpscale.__main__ import main

        before = mapped("VmSize")
        if extra is not None:
            resource.setrlimit(resource.RLIMIT_AS, (before + extra, before + extra))
        try:
            main(["measure", run, "--quiet", "--scheduler", "synchronous" if planted else "threads"])
        except SystemExit as error:
            code = int(error.code or 0)
        if extra is None:
            Path(grown).write_text(str(mapped("VmPeak") - before))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def main(limits: int, planted: bool, runs: list[str]) -> None:
    load()
    need = child(runs[0], None, False)[2]
    found = []
    for step in range(limits):
        extra = int(1.2 * need * ((step + 0.5) / limits) ** 2)  # what fails is where little is left
        found.append([child(run, extra, planted)[:2] for run in runs])
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "planted", sys.argv[3:])
