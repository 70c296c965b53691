"""Compilation of the package's loops in one process, before the processes of pytest-xdist would each do it."""

import importlib
import tempfile
from pathlib import Path

import dpscale as dp
from dpscale.base.compilation import Kernel
from tests.audit.small import write

PACKAGE = Path(dp.__file__).parent
UNIT = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 3}


def compile_loops():
    """Compile all loops that state their signatures, and make a small run for the others."""
    for path in PACKAGE.rglob("*loops.py"):
        module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        for kernel in [own for own in vars(module).values() if isinstance(own, Kernel)]:
            assert kernel.dispatcher
    with tempfile.TemporaryDirectory() as folder:
        dp.run(write(Path(folder), data=UNIT, synthesize={"rows": 100}), run_dir=Path(folder) / "run")
