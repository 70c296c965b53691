"""Import modules by their names before the 24 packages, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OLD_NAMES = {
    "adaptive": "measurement.adaptive",
    "answered": "answers",
    "attribute": "domain.attribute",
    "blas": "base.numerics",
    "calendar": "domain.attribute",
    "compare": "evaluation",
    "data": "job.data",
    "database": "runs.links",
    "database.job": "job.tables",
    "database.release": "api.release",
    "declared": "domain.domain_schema",
    "discreet": "base.error_redaction",
    "each": "base.numerics",
    "errors": "base.errors",
    "evidence": "audit.evidence",
    "faults": "base.settings",
    "glance": "base.display",
    "graphical": "reconstruction.junction_tree",
    "impossible": "domain.structural_zeros",
    "jit": "base.numerics",
    "lake": "records.lake",
    "measure": "measurement",
    "names": "base.display",
    "parquet": "records.parquet",
    "public": "api.public",
    "publish": "answers.publish",
    "reconstruct": "reconstruction",
    "release": "api.release",
    "report": "answers.report",
    "residual": "workload.residual",
    "sections": "job.sections",
    "solve": "optimize",
    "stages": "runs.stages",
    "synthesize": "synthesis",
    "tables": "records",
    "tables.count": "counting.count",
    "tables.counter": "counting.count",
    "tables.links": "contributions.links",
    "tables.through": "contributions.unit_shards",
    "tables.units": "contributions.units",
}


def new_name(name: str) -> str | None:
    """Return the module that replaces `name`, or None if `name` is no old name."""
    parts = name.split(".")[1:]
    for length in (2, 1):
        new = OLD_NAMES.get(".".join(parts[:length]))
        if new is not None:
            return ".".join(["dpscale", new, *parts[length:]])
    return None


class OldModules(MetaPathFinder, Loader):
    """Finder and loader of old module names: each gives the module of the new name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith("dpscale.") and new_name(fullname):
            return ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Use the default module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        new = new_name(module.__name__)
        assert new is not None
        message = f"{module.__name__} is now {new}; the old name will be removed in the next release"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)


def install() -> None:
    """Find old names first, once per process: an empty folder of an old name must not hide them."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldModules())
