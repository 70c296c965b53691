"""Modules import each other in no circle; names of modules in strings count as imports."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dpscale

PACKAGE = Path(dpscale.__file__).parent
UNKNOWN = "\0"  # part of a string that is known at run time only

# Tables of plug-ins and names that are imported at their first use. Their strings do not count, and no other module
# calls import_module. The list only shrinks.
REGISTRIES = {
    "dpscale": "public names, imported at their first use",
    "dpscale.privacy": "accounting, imported at its first use",
    "dpscale.base": "lazy modules, whose names count as imports where they are written",
    "dpscale.base.compilation": "functions of the calling module, compiled at their first call",
    "dpscale.base.plugins": "plug-ins of the tables and of entry points",
    "dpscale.mechanisms": "table of mechanisms",
    "dpscale.reconstruction": "table of reconstructions",
    "dpscale.records.formats": "table of data formats",
    "dpscale.records.origin": "readers of tables with a log, each with a package that may be missing",
    "dpscale.answers.report.page": "sections with a module of their own",
    "dpscale.reconstruction.junction_tree": "pgmpy, which may be missing",
    "dpscale.contributions.unit_ids": "pandas, imported before values of units are read",
    "dpscale.audit.evidence.recompute": "the checker, which also runs as a script outside the package",
    "dpscale.runs.stage": "tables of stages, and of the kinds of runs and of parts",
}


def modules() -> dict[str, str]:
    """Return the source of every module by its name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path.read_text()
    return found


def text_of(node: ast.AST, package: str) -> str | None:
    """Return a string, with UNKNOWN for what is known at run time only; None for another expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id="__package__" | "__name__"):
            return package
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part, package) or UNKNOWN for part in parts)
        case ast.FormattedValue(value=value):
            return text_of(value, package) or UNKNOWN
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (text_of(left, package) or UNKNOWN) + (text_of(right, package) or UNKNOWN)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return re.sub("%[a-z]", UNKNOWN, text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return re.sub(r"{\w*}", UNKNOWN, text)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="join"), args=[ast.List(elts=parts)]
        ):
            return text.join(text_of(part, package) or UNKNOWN for part in parts)
    return None


def named_modules(text: str, known: frozenset[str]) -> set[str]:
    """Return the modules that a string names, as `package.module` or `package.module:attribute`."""
    if not text.startswith("dpscale.") or not re.fullmatch(r"[\w.\0]+(:[\w\0]*)?", text):
        return set()
    pattern = re.escape(text.partition(":")[0]).replace(re.escape(UNKNOWN), r"\w+")
    return {name for name in known if re.fullmatch(pattern, name)}


@cache
def references(name: str, source: str, known: frozenset[str]) -> set[str]:
    """Return the modules that a module imports, or names in strings unless it is a registry."""
    found, package = set[str](), name if name in PACKAGES else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{one.name}" for one in node.names}
            found |= inner & known or {node.module}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif name not in REGISTRIES and not isinstance(node, ast.Name) and (text := text_of(node, package)):
            found |= named_modules(text, known)
    return found & known - {name}


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    return {name: references(name, source, frozenset(sources)) for name, source in sources.items()}


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other, directly or by way of others."""
    left = {name: set(others) for name, others in imports.items()}
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others - free for name, others in left.items() if name not in free}
    below = {name: reachable(left, name) for name in left}
    found = {frozenset(other for other in below[name] if name in below[other]) for name in left}
    return [set(one) for one in found if one]


def reachable(imports: dict[str, set[str]], name: str) -> set[str]:
    found, waiting = set[str](), [name]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def package_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


def dynamic_importers(sources: dict[str, str]) -> set[str]:
    """Return the modules that import by a name of theirs."""
    return {name for name, source in sources.items() if re.search(r"\b(import_module|__import__)\(", source)}


def names_modules(name: str) -> bool:
    """Return whether a module imports by name, or names modules in strings."""
    nodes = ast.walk(ast.parse(SOURCES[name]))
    named = any(named_modules(text, frozenset(SOURCES)) for node in nodes if (text := text_of(node, name)))
    return named or name in dynamic_importers(SOURCES)


SOURCES = modules()
PACKAGES = {name for name in SOURCES if any(other.startswith(f"{name}.") for other in SOURCES)}


def test_modules_import_each_other_in_no_circle():
    assert circles(graph(SOURCES)) == []


def test_modules_are_imported_by_name_in_registries_alone():
    """An entry without an occurrence is removed."""
    assert dynamic_importers(SOURCES) <= set(REGISTRIES)
    assert {name for name in set(REGISTRIES) if not names_modules(name)} == set()


@pytest.mark.parametrize("line", [
    "from dpscale.job import Job",
    "import dpscale.job",
    'SECTION = "dpscale.job"',
    'SECTION = "dpscale.job:Job"',
    'SECTION = "dpscale." + "job"',
    'SECTION = f"dpscale.{kind}"',
    'SECTION = "dpscale.{}".format(kind)',
    'SECTION = "dpscale.%s" % kind',
    'SECTION = ".".join(["dpscale", kind])',
])  # fmt: skip
def test_planted_circle_is_detected(line):
    planted = SOURCES | {"dpscale.base.errors": f"kind = 1\n{line}\n"}
    with pytest.raises(CycleError):
        TopologicalSorter(graph(planted)).prepare()
    assert any({"dpscale.base.errors", "dpscale.job"} <= circle for circle in circles(graph(planted)))


def test_planted_dynamic_import_is_detected():
    planted = SOURCES | {"dpscale.job.data": 'import_module("." + name, __package__)'}
    assert dynamic_importers(planted) - set(REGISTRIES) == {"dpscale.job.data"}
