"""Mutants are tried on the tests that reach their line; the script says which survive."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.default_set import numbers_of, set_of
from tests.mutants import Copy, Reach, mutants_of, try_mutants

PLANTED = '''"""A planted module."""


def larger(first, second):
    """Return the larger number."""
    if first < second:
        return second
    return first


def unused(value):
    return value + 1
'''
TESTS = """from dpscale.planted import larger


def test_larger():
    assert larger(1, 2) == larger(2, 1) == 2


def test_equal():
    assert larger(3, 3) == 3


def test_unsound():
    assert False
"""
LINES = [("dpscale/planted.py", 6, 7), ("dpscale/planted.py", 6, 8)]
COSTS = {
    "tests/test_planted.py::test_larger": (0.2, 0b11),
    "tests/test_planted.py::test_equal": (0.3, 0b10),
    "tests/test_planted.py::test_unsound": (0.1, 0b11),
    "tests/test_planted.py::test_absent": (0.1, 0b11),
}


def changed(source, path="dpscale/module.py"):
    """Return the changes of a source as texts."""
    return {f"{mutant.line}: {mutant.before} -> {mutant.after}" for mutant in mutants_of(path, source)}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    files = {"dpscale/__init__.py": "", "dpscale/planted.py": PLANTED, "tests/test_planted.py": TESTS}
    for file, text in files.items():
        (tmp_path / "root" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / file).write_text(text)
    (tmp_path / "copy").mkdir()
    copy = Copy(tmp_path / "root", list(files), tmp_path / "copy", say=(said := []).append)
    copy.said = said
    return copy


def test_changes_of_each_kind():
    source = (
        "def f(a: int = 1, *, b: 2 = 3):\n"
        "    if not a <= b and c:\n"
        "        raise ValueError(1 + 2)\n"
        "    d[0] = -a\n"
        "    a *= True\n"
        '    return g(f"{a + 1}", a // 2)\n'
    )
    assert changed(source) == {
        "2: not a <= b and c -> (not a <= b or c)", "2: not a <= b -> (a <= b)", "2: a <= b -> (a < b)",
        "3: raise ValueError(1 + 2) -> pass", "4: d[0] = -a -> pass", "4: 0 -> (1)", "4: -a -> (a)",
        "5: a *= True -> a /= True", "5: a *= True -> pass", "5: True -> (False)",
        "6: return g(f'{a + 1}', a // 2) -> return None", "6: a // 2 -> (a * 2)", "6: 2 -> (3)",
    }  # fmt: skip
    assert changed("LIMIT = 1 + 2\n@cache(1)\ndef g(): return None\n") == set()


def test_every_mutant_is_a_program_with_one_change():
    source = Path(__file__).with_name("mutants.py").read_text()
    found = list(mutants_of("tests/mutants.py", source))
    assert len(found) > 100
    for mutant in found:
        content = source.encode()
        text = content[: mutant.place.start] + mutant.after.encode() + content[mutant.place.stop :]
        compile(text, mutant.path, "exec")
        assert text != content


def test_mutants_are_tried_on_the_default_set_and_then_on_the_rest(planted):
    """Of three mutants that tests reach, one has the same results, and one is detected by a test of the rest only."""
    reach = Reach({"dpscale/planted.py": PLANTED}, LINES, COSTS)
    names = planted.existing()
    assert names == set(COSTS) - {"tests/test_planted.py::test_absent"}
    outside = {"tests/test_planted.py::test_larger"}
    alive, alive_in_all = try_mutants(planted, reach, names - outside, outside, 9, 1)
    assert {str(mutant) for mutant in alive} == {
        "dpscale/planted.py:6: first < second  ->  (first <= second)",
        "dpscale/planted.py:7: return second  ->  return None",
    }
    assert [mutant.line for mutant in alive_in_all] == [6]
    assert planted.unsound == {"tests/test_planted.py::test_unsound"}
    assert planted.said[0].startswith("3 of 3 mutants, 2 tests in the default set, 1 in the rest, 0 of them not")
    assert planted.said[-1] == "the default set kills 1 of 3, the whole set 2: 50.0%"
    assert (planted.place / "dpscale/planted.py").read_text() == PLANTED


def test_endless_mutant_is_stopped(planted):
    planted.limit = 2.0
    endless = replace(next(mutants_of("dpscale/planted.py", PLANTED)), after="sum(1 for _ in iter(int, 1))")
    assert planted.kills({endless: ["tests/test_planted.py::test_larger"]}) == {endless: "time"}


def test_loop_is_reached_by_lines_that_name_it():
    loops = "@compiled()\ndef inner(x):\n    return x + 1\n\n\n@compiled()\ndef outer(x):\n    return inner(x)\n"
    calls = "def call(x):\n    return loops.outer(x)\n"
    reach = Reach({"a.py": loops, "b.py": calls}, [("b.py", 2, -1)], {"test": (1.0, 1)})
    found = list(mutants_of("a.py", loops))
    assert {mutant.loop for mutant in found} == {"inner", "outer"}
    assert all(reach.tests(mutant) == ["test"] for mutant in found)


def test_numbers_of_a_set():
    assert list(numbers_of(set_of([3, 900, 0]))) == [0, 3, 900]
    assert set_of([]) == 0
