"""The package has no import cycle; Ruff limits functions (pyproject.toml)."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def imports():
    graph = grimp.build_graph("dpscale", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_package_has_no_import_cycle():
    TopologicalSorter(imports()).prepare()


def test_planted_import_cycle_is_detected():
    with pytest.raises(CycleError):
        TopologicalSorter(imports() | {"dpscale.base.errors": {"dpscale.job"}}).prepare()
