"""The house stays what docs/design.md says: short functions and modules, no circle of imports, no room too large."""

import ast
import statistics
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import dpscale

HOUSE = Path(dpscale.__file__).parent
MODULES = sorted(HOUSE.rglob("*.py"))
LONGEST_MODULE, MEDIAN, NINE_IN_TEN, LARGEST_ROOM = 400, 6, 14, 0.12


def lengths(source):
    """Lines of every function's body, its docstring left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            yield node.end_lineno - body[0].lineno + 1


def test_functions_are_short():
    found = sorted(length for path in MODULES for length in lengths(path.read_text()))
    assert statistics.median(found) <= MEDIAN
    assert found[int(0.9 * len(found))] <= NINE_IN_TEN


def test_modules_are_short():
    assert [str(path) for path in MODULES if path.read_text().count("\n") > LONGEST_MODULE] == []


def test_no_room_is_too_large():
    rooms = Counter()
    for path in MODULES:
        place = path.relative_to(HOUSE).parts
        rooms[place[0] if len(place) > 1 else ""] += sum(bool(line.strip()) for line in path.read_text().splitlines())
    total = rooms.total()
    del rooms[""]
    assert {room for room, lines in rooms.items() if lines > LARGEST_ROOM * total} == set()


def imports():
    graph = grimp.build_graph("dpscale", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_module_imports_itself_in_a_circle():
    TopologicalSorter(imports()).prepare()


def test_a_planted_circle_is_seen():
    with pytest.raises(CycleError):
        TopologicalSorter(imports() | {"dpscale.base.errors": {"dpscale.job"}}).prepare()
