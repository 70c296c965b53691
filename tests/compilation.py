"""Compilation of the package's loops once, before the processes of pytest-xdist would each do it.

Loops that compile for the types of their first call are compiled in turn: the other processes read the machine code.
"""

import importlib
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import RLock

import dpscale as dp
from dpscale.base.compilation import Kernel
from dpscale.records import parquet
from dpscale.storage.lock import file_lock
from tests.audit.small import write

PACKAGE = Path(dp.__file__).parent
UNIT = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 3}


def compile_loops():
    """Compile all loops that state their signatures, in two processes, and make a small run for the others."""
    paths = [one for one in PACKAGE.rglob("*.py") if "base.compilation import" in one.read_text()]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(compile_module, names))
    parquet.FIRST_VALUES = parquet.SMALL_GROUP = 0  # files are read by loops
    with tempfile.TemporaryDirectory() as folder:
        dp.run(write(Path(folder), data=UNIT, synthesize={"rows": 100}), run_dir=Path(folder) / "run")


def compile_module(name):
    """Compile the loops of a module that state their signatures."""
    for kernel in [own for own in vars(importlib.import_module(name)).values() if isinstance(own, Kernel)]:
        assert kernel.dispatcher


def compile_in_turn():
    """Let one process of a test session compile at a time."""
    from numba.core.dispatcher import Dispatcher

    place = Path(os.environ["DPSCALE_TESTS"]) / "compilation.lock"
    compile_any, turn, depth = Dispatcher.compile, RLock(), [0]

    def compile_alone(self, signature):
        # a loop that compiles the loops that it calls has the turn
        with turn, nullcontext() if depth[0] else file_lock(place):
            depth[0] += 1
            try:
                return compile_any(self, signature)
            finally:
                depth[0] -= 1

    Dispatcher.compile = compile_alone
