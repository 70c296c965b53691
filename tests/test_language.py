"""Vocabulary, docstrings and names of the package stay within the limits of docs/design.md."""

import ast
import importlib
import inspect
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from numpydoc.validate import validate

import dpscale

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dpscale.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Words of spoken or archaic English that do not occur in the documentation of other scientific packages.
UNUSUAL = frozenset(
    """told tell tells telling foretold foretell believed believes whom said held holds kept keeps keeping settled
    thrown dealt nobody somebody whoever whatever meanwhile alike beforehand lest mend mended dear sureness apart beside
    thereof herein asks asked anew gone goes whither""".split()  # noqa: SIM905
)
REQUIRED = {"PR01": "parameters", "PR02": "unknown parameters", "RT01": "returns"}


def docstrings(tree):
    """Docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def share_of(words, unusual):
    """Number of unusual words per 1,000 words."""
    return 1000 * sum(words[word] for word in unusual) / max(words.total(), 1)


def words_of(text):
    return Counter(re.findall("[a-z]+", text.lower()))


def prose(path):
    """Text of a Markdown page without code, links and HTML."""
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]+>", " ", path.read_text(), flags=re.DOTALL)


def names_of(tree):
    """Names of classes, functions and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.arg):
            yield node.arg


def parts_of(name):
    """Words of a name in snake case or camel case."""
    return set(re.sub("([A-Z])", r"_\1", name).lower().split("_"))


@pytest.fixture(scope="module")
def trees():
    return {path: ast.parse(path.read_text()) for path in MODULES}


def test_docstrings_use_plain_words(trees):
    words = words_of("\n".join(text for tree in trees.values() for text in docstrings(tree)))
    assert share_of(words, UNUSUAL) <= 1.5
    assert share_of(words, {"what"}) <= 1


@pytest.mark.parametrize(("pages", "limit"), [("docs/**/*.md", 3), ("README.md", 4)])
def test_documents_use_plain_words(pages, limit):
    words = words_of("\n".join(prose(path) for path in ROOT.glob(pages)))
    assert share_of(words, UNUSUAL | {"what"}) <= limit


def test_names_use_plain_words(trees):
    found = {name for tree in trees.values() for name in names_of(tree) if parts_of(name) & UNUSUAL}
    assert len(found) <= 10, sorted(found)


def test_class_names_are_unique(trees):
    modules = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name != "Options":  # every plug-in has Options
                modules[node.name].add(path)
    assert len({name for name, paths in modules.items() if len(paths) > 1}) <= 8


def public_objects():
    """Names and objects that `import dpscale` exports, with public methods of classes and functions of modules."""
    for name in dpscale.__all__:
        thing = getattr(dpscale, name)
        if inspect.ismodule(thing):
            yield from (f"dpscale.{name}.{own}" for own in thing.__all__)
            continue
        yield f"dpscale.{name}"
        if inspect.isclass(thing):
            yield from (
                f"dpscale.{name}.{own}"
                for own in members(thing)
                if not own.startswith("_") and own not in fields(thing)
            )


def members(thing):
    """Names that a class and its bases in dpscale define."""
    bases = [one for one in thing.__mro__ if one.__module__.startswith("dpscale.")]
    return dict.fromkeys(own for one in bases for own in vars(one))


def fields(thing):
    """Names of data fields, which are documented as parameters of the class."""
    return set(getattr(thing, "__dataclass_fields__", ())) | set(getattr(thing, "_fields", ()))


@pytest.mark.parametrize("name", list(public_objects()))
def test_public_names_have_complete_docstrings(name):
    faults = [text for code, text in validate(name)["errors"] if code in REQUIRED]
    assert faults == []


# Columns of result tables, the folder of Python's own caches, and a setting of PostgreSQL.
OTHER_NAMES = re.compile(r"(age|attribute|value|low|high|start|end)_\w+|__pycache__|synchronous_commit")


def names_in(tree, path):
    """Identifiers and words of strings of a module, without its docstrings."""
    found = {*path.parts, path.stem}
    for node in ast.walk(tree):
        found.update(str(value) for key in ("id", "attr", "arg", "name") if (value := getattr(node, key, None)))
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(node.module.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            found.update(re.findall(r"\w+", node.value))
    return found


def unknown_references(texts, known):
    """Names in single backticks that are in no module."""
    named = (name for text in texts for name in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)`", text))
    return [name for name in named if not set(name.split(".")) <= known and not OTHER_NAMES.fullmatch(name)]


def test_docstrings_refer_to_names_that_exist(trees):
    known = set().union(*(names_in(tree, path.relative_to(PACKAGE.parent)) for path, tree in trees.items()))
    assert unknown_references([text for tree in trees.values() for text in docstrings(tree)], known) == []
    assert unknown_references(["See `Nonexistent.name`."], known) == ["Nonexistent.name"]


def documented_names(text, sections):
    """Names in numpydoc sections: the parts before " : " of lines that are not indented."""
    found, section = [], None
    for line, following in pairwise([*text.splitlines(), ""]):
        if following.strip() and set(following.strip()) == {"-"}:
            section = line.strip()
        elif section in sections and re.match(r"[*\w][*\w, ]*( : |$)", line):
            found += [name.strip().lstrip("*") for name in line.split(" : ")[0].split(",")]
    return found


@cache
def source_of(thing):
    """Return the source of a class, which `inspect` finds by parsing its module."""
    return inspect.getsource(thing)


@cache
def members_of(thing):
    """Parameters, fields, methods and assigned attributes of a function, or of a class and its bases."""
    if inspect.isfunction(thing):
        return set(inspect.signature(thing).parameters)
    own = [base for base in thing.__mro__ if base.__module__.startswith("dpscale")]
    assigned = {name for base in own for name in re.findall(r"self\.(\w+)", source_of(base))}
    annotated = {name for base in own for name in vars(base).get("__annotations__", ())}
    created = set(inspect.signature(own[0].__init__).parameters) if own else set()
    return assigned | annotated | created | set(dir(thing))


def stale_sections(module):
    """Parameters and attributes that are documented and do not exist, by function or class of a module."""
    things = [getattr(thing, "py_func", thing) for thing in vars(module).values()]
    things = [thing for thing in things if getattr(thing, "__module__", "") == module.__name__]
    things += [method for thing in things if inspect.isclass(thing) for method in vars(thing).values()]
    for thing in things:
        if inspect.isclass(thing) or inspect.isfunction(thing):
            names = documented_names(inspect.getdoc(thing) or "", ("Parameters", "Attributes"))
            yield from (f"{thing.__qualname__}: {name}" for name in names if name not in members_of(thing))


def test_documented_parameters_exist():
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in MODULES]
    names = [name.removesuffix(".__init__") for name in modules if not name.endswith("__main__")]
    assert [fault for name in names for fault in stale_sections(importlib.import_module(name))] == []


def test_stale_parameter_is_detected():
    text = "Add.\n\nParameters\n----------\nx, y : int\nz : int\n    Not a parameter.\n\nReturns\n-------\nint\n"
    assert documented_names(text, ("Parameters",)) == ["x", "y", "z"]


def test_planted_faults_are_detected():
    """Planted faults: a dialect word, and a function without numpydoc sections."""
    assert share_of(words_of("what it tells of whom"), UNUSUAL | {"what"}) == 600
    assert parts_of("GroupKept") & UNUSUAL
    assert "PR01" in {code for code, _ in validate("tests.test_language.share_of")["errors"]}
