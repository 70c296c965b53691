"""Compilation of the package's loops in one process, before the processes of pytest-xdist would each do it.

Loops that compile for the types of their first call are compiled in turn: the other processes read the machine code.
"""

import fcntl
import importlib
import os
import tempfile
from pathlib import Path
from threading import RLock

import dpscale as dp
from dpscale.base.compilation import Kernel
from tests.audit.small import write

PACKAGE = Path(dp.__file__).parent
UNIT = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 3}


def compile_loops():
    """Compile all loops that state their signatures, and make a small run for the others."""
    for path in [one for one in PACKAGE.rglob("*.py") if "base.compilation import" in one.read_text()]:
        module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        for kernel in [own for own in vars(module).values() if isinstance(own, Kernel)]:
            assert kernel.dispatcher
    with tempfile.TemporaryDirectory() as folder:
        dp.run(write(Path(folder), data=UNIT, synthesize={"rows": 100}), run_dir=Path(folder) / "run")


def compile_in_turn():
    """Let one process of a test session compile at a time."""
    from numba.core.dispatcher import Dispatcher

    place = Path(tempfile.gettempdir()) / f"dpscale-compile-{os.environ['PYTEST_XDIST_TESTRUNUID']}"
    compile_any, turn, depth = Dispatcher.compile, RLock(), [0]

    def compile_alone(self, signature):
        with turn, open(place, "w") as file:
            if not depth[0]:  # a loop that compiles the loops that it calls has the turn
                fcntl.flock(file, fcntl.LOCK_EX)
            depth[0] += 1
            try:
                return compile_any(self, signature)
            finally:
                depth[0] -= 1

    Dispatcher.compile = compile_alone
