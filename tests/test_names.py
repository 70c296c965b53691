"""Names of families, mechanisms, reconstructions and formats occur in their own modules and in the registries alone."""

import ast
from functools import cache
from pathlib import Path

import dpscale
from dpscale.mechanisms import MECHANISMS
from dpscale.reconstruction import RECONSTRUCTIONS
from dpscale.records.formats import FORMATS
from dpscale.workload import FAMILIES

PACKAGE = Path(dpscale.__file__).parent
TABLES = {"mechanisms/__init__.py", "reconstruction/__init__.py", "records/formats.py"}


def module_path(name: str) -> str:
    path = name.removeprefix("dpscale.").replace(".", "/")
    return f"{path}/__init__.py" if (PACKAGE / path).is_dir() else f"{path}.py"


OWNERS = (
    [(name, module_path(module)) for table in (MECHANISMS, RECONSTRUCTIONS, FORMATS)
     for name, module in table.items()]
    + [(name, module_path(type(family).__module__)) for name, family in FAMILIES.items()]
)  # fmt: skip
NAMES = {name for name, _ in OWNERS}

# texts that equal a name and are another thing, with the modules (a folder ends with a slash)
HOMONYMS = {
    # a kind of factor, also in plan files; a strategy of one attribute; a table of the ledger; a transform of Iceberg;
    # the cells of an attribute, in a product
    "identity": ("plans/", "measurement/", "reconstruction/base.py", "audit/evidence/", "mechanisms/baseline.py",
                 "mechanisms/eigen_design.py", "mechanisms/residual_planner_plus.py", "ledger/schema.py",
                 "records/lake.py", "workload/families.py"),
    # the choice of a reconstruction, sampler or error; a recorded mechanism, for a checker with code of its own;
    # an argument of matplotlib
    "auto": ("job/", "cli/schema.py", "reconstruction/base.py", "reconstruction/maxent.py",
             "answers/report/figures.py"),
    "product": ("mechanisms/hdmm.py",),  # a search
    "range": ("audit/evidence/", "runs/links/link_facts.py"),  # a key of selections
    "prefix": ("mechanisms/residual_planner_plus.py",),  # a strategy of one attribute
    "random": ("runs/links/", "cli/plan.py"),  # the error of random links
    "maxent": ("job/sections.py",),  # a method of links
    "graphical": ("reconstruction/junction_tree.py",),  # an extra of the package
    # a mechanism states which other name a reconstruction has for its evidence, or the option that enables it
    "grem": ("mechanisms/matrix_mechanism.py", "mechanisms/aim_grem.py"),
    "least-squares": ("mechanisms/matrix_mechanism.py",),
    "arrow": ("answers/tables.py", "api/answers.py"),  # a kind of frame
    # formats of published tables and of synthetic rows
    "csv": ("answers/publish.py", "cli/outputs.py", "job/sections.py"),
    # a statistic of an attribute, of degrees and of errors; a summed quantity; a parameter of noise
    "mean": ("answers/statistics.py", "cli/check.py", "evaluation/", "runs/links/"),
    # what is minimised
    "sum": ("engine/graphs.py", "runs/links/measuring.py", "runs/links/link_facts.py",
            "mechanisms/residual_planner.py", "mechanisms/contract.py", "mechanisms/largest_error.py",
            "mechanisms/matrix_mechanism.py"),
    "variance": ("audit/", "privacy/", "runs/links/first_measurement.py"),
    "parquet": ("answers/publish.py", "cli/outputs.py", "job/sections.py"),
}  # fmt: skip


@cache
def constants(source: str) -> list[tuple[int, str]]:
    """Return line and value of string constants other than docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree)
                  if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}  # fmt: skip
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [(node.lineno, node.value) for node in strings if id(node) not in docstrings]


def is_allowed(path: str, name: str) -> bool:
    homonym = any(path == place or (place.endswith("/") and path.startswith(place)) for place in HOMONYMS.get(name, ()))
    return homonym or path in TABLES or (name, path) in OWNERS


def foreign_names(path: str, source: str) -> list[str]:
    """Return the registered names that a module contains although it does not own them."""
    return [f"{path}:{line} {name}" for line, name in constants(source) if name in NAMES and not is_allowed(path, name)]


def test_names_occur_in_their_own_modules():
    found = [fault for path in sorted(PACKAGE.rglob("*.py"))
             for fault in foreign_names(str(path.relative_to(PACKAGE)), path.read_text())]  # fmt: skip
    assert found == []


def test_planted_name_is_found_and_docstring_is_not():
    planted = 'def share(part):\n    """prefix"""\n    return part.name in ("prefix", "aim-grem")\n'
    assert foreign_names("runs/answers.py", planted) == ["runs/answers.py:3 prefix", "runs/answers.py:3 aim-grem"]
    assert foreign_names("workload/one_way.py", planted) == ["workload/one_way.py:3 aim-grem"]


def test_every_homonym_occurs():
    """An entry of the list without an occurrence is removed."""
    texts = {str(path.relative_to(PACKAGE)): {text for _, text in constants(path.read_text())}
             for path in PACKAGE.rglob("*.py")}  # fmt: skip
    unused = [(name, place) for name, places in HOMONYMS.items() for place in places
              if not any(name in own for path, own in texts.items() if path.startswith(place))]  # fmt: skip
    assert unused == []


def test_parts_are_not_distinguished_by_class_outside_workload():
    """No other package asks with isinstance which class a part of the workload has."""
    classes = {"ProductPart", "JointPart", "ExplicitPart", "Family", "JointFamily"}
    found = [f"{path.relative_to(PACKAGE)}:{line}" for path in PACKAGE.rglob("*.py")
             if path.parent.name != "workload" for line in class_checks(path.read_text(), classes)]  # fmt: skip
    assert found == []
    assert class_checks("x = 1\nif isinstance(part, (int, ProductPart)):\n    pass\n", classes) == [2]


def class_checks(source: str, classes: set[str]) -> list[int]:
    """Return the lines with isinstance of one of the classes."""
    return [node.lineno for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
            and any(getattr(one, "id", "") in classes for one in ast.walk(node.args[1]))]  # fmt: skip
