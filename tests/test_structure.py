"""Structure of the package: module length, package size and import cycles; Ruff limits functions (pyproject.toml)."""

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import dpscale

PACKAGE = Path(dpscale.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_MODULE, LARGEST_SHARE, MOST_IMPORTS_BETWEEN_PACKAGES = 400, 0.147, 210


def package_of(path):
    """Return the first directory of a module below the package, or an empty text for top-level modules."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def test_modules_are_short():
    assert [str(path) for path in MODULES if path.read_text().count("\n") > LONGEST_MODULE] == []


def test_no_package_is_too_large():
    lines = Counter()
    for path in MODULES:
        lines[package_of(path)] += sum(bool(line.strip()) for line in path.read_text().splitlines())
    total = lines.total()
    assert {name for name, own in lines.items() if name and own > LARGEST_SHARE * total} == set()


def imports():
    graph = grimp.build_graph("dpscale", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_package_has_no_import_cycle():
    TopologicalSorter(imports()).prepare()


def test_planted_import_cycle_is_detected():
    with pytest.raises(CycleError):
        TopologicalSorter(imports() | {"dpscale.base.errors": {"dpscale.job"}}).prepare()


def test_packages_import_few_others():
    pairs = {
        (module.split(".")[1], other.split(".")[1])
        for module, others in imports().items()
        for other in others
        if module.count(".") and other.count(".")
    }
    assert len({(one, other) for one, other in pairs if one != other}) <= MOST_IMPORTS_BETWEEN_PACKAGES
