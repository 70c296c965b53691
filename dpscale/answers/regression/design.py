"""Design of a regression: a formula as columns over the cells of attributes.

A column is a function of the cells of a few attributes, times numbers. Products of columns are queries over the
attributes of both, so second moments need no table of all covariates. `formulaic` parses the formula and codes
categories (treatment coding, the first label is the reference). Bins have their midpoints. Records whose value of a
numeric attribute is missing or outside the domain are left out, as are those with a missing number.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.statistics import NUMBERS, value_of
from dpscale.answers.tables import texts
from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.domain.number import PLACES, Number

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_CELLS = 100_000  # of the attributes of a term, and of the joint table
MOST_COLUMNS = 60  # of a formula
CODING = "C"
FUNCTIONS = {CODING, "I", "exp", "log", "log10", "log2"}
QUOTED = re.compile(r"`([^`]*)`")
TEXTS = re.compile(r"'[^']*'|\"[^\"]*\"")
PARTS = "attributes, numbers, C(a), a:b, a*b, I(…), log, exp and comparisons of one record"


@dataclass(frozen=True, eq=False)
class DesignColumn:
    """A column of the design, or the outcome.

    Attributes
    ----------
    name : str
    attributes : AttributeSet
        In domain order.
    values : ndarray
        One axis for each attribute.
    numbers : tuple of str
        Numbers that multiply the values.
    """

    name: str
    attributes: AttributeSet
    values: Floats
    numbers: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.attributes, *self.numbers)


@dataclass(frozen=True, eq=False)
class Design:
    """Columns and outcome of a regression.

    Attributes
    ----------
    domain : Domain
    formula : str
    outcome : DesignColumn
    columns : tuple of DesignColumn
    known : mapping of str to ndarray
        1 for cells whose records count and 0 for the others, of each attribute or number with both.
    """

    domain: Domain
    formula: str
    outcome: DesignColumn
    columns: tuple[DesignColumn, ...]
    known: Mapping[str, Floats]

    @cached_property
    def names(self) -> AttributeSet:
        """Attributes and numbers of the regression, in domain order."""
        names = {name for column in (self.outcome, *self.columns) for name in column.names}
        return self.domain.ordered([*names])

    @property
    def has_numbers(self) -> bool:
        return any(name in self.domain.number_names for name in self.names)

    @property
    def has_constant(self) -> bool:
        return any(not column.names for column in self.columns)

    def product(self, *columns: DesignColumn) -> tuple[AttributeSet, Floats]:
        """Return the product of columns over the records that count, as a query over a set.

        `known` marks the cells with a known value, by attribute: records of other cells do not count.

        Raises
        ------
        PlanError
            If it needs squares of a number that are not measured.
        """
        powers: dict[str, int] = {name: 0 for name in self.known}
        for column in columns:
            for name in column.numbers:
                powers[name] = powers.get(name, 0) + 1
        axes = [*dict.fromkeys(name for column in columns for name in column.attributes), *powers]
        names = self.domain.ordered(dict.fromkeys(axes))
        arrays = [spread(column.attributes, column.values, names) for column in columns]
        arrays += [spread((name,), self._powers(name, power), names) for name, power in powers.items()]
        values = reduce(np.multiply, arrays, np.ones(()))
        return names, np.broadcast_to(values, self.domain.shape(names))

    def table(self, column: DesignColumn) -> Floats:
        """Return a column over all cells of the regression's attributes."""
        names = self.names
        return np.broadcast_to(spread(column.attributes, column.values, names), self.domain.shape(names))

    def _powers(self, name: str, power: int) -> Floats:
        """Return a power of a number, or of an attribute that is known, as a query on its cells."""
        known = self.known.get(name, np.ones(self.domain[name].size))
        return known * number_powers(self.domain[name], power) if power else known

    def check_independent(self) -> None:
        """Raise JobError for columns that are linearly dependent over the cells.

        Second moments are taken over all cells with equal weight; a smallest eigenvalue of zero shows the first
        dependent column.
        """
        moments = np.array([[self._mean(column, other) for other in self.columns] for column in self.columns])
        scale = 1 / np.sqrt(np.maximum(np.diag(moments), 1e-300))
        moments = moments * np.outer(scale, scale)
        for count in range(1, len(moments) + 1):
            if np.linalg.eigvalsh(moments[:count, :count])[0] < 1e-9:
                name = self.columns[count - 1].name
                raise JobError("formula", f"the column {name}, which follows from the others", "independent columns",
                               "leave one of its terms out")  # fmt: skip

    def _mean(self, *columns: DesignColumn) -> float:
        return float(self.product(*columns)[1].mean())


def number_powers(number: Any, power: int) -> Floats:
    """Return the first or second power of a number as a query on its cells.

    Cells of a number with squares are the ends and two more, at which the values t are placed in -1 to 1; x is the
    middle plus half the range times t.
    """
    if power == 1:
        return np.asarray(number.cell_values)
    if power > 2 or not number.squares:
        raise PlanError("formula", f"power {power} of {number.name}", "numbers, and squares of those with variances",
                        f'add family = "variance" with of = "{number.name}" to the workload')  # fmt: skip
    low, high = number.cell_ends
    t = np.array([2 * place - 1 for place in PLACES[True]])
    squares = ((low + high) / 2) ** 2 + (low + high) * number.half_range * t
    squares += number.half_range**2 * np.array([1.0, 0.0, 0.0, 1.0])
    return np.append(squares, np.zeros(number.size - len(squares)))


def spread(attributes: AttributeSet, values: Floats, names: AttributeSet) -> Floats:
    """Return an array over attributes with an axis of length 1 for each other name; both are in domain order."""
    sizes = dict(zip(attributes, values.shape, strict=True))
    return values.reshape([sizes.get(name, 1) for name in names])


def read_design(domain: Domain, formula: str) -> Design:
    """Return the design of a formula.

    Raises
    ------
    JobError
        If the formula cannot be parsed, names an unknown attribute, has unsupported parts or dependent columns.
    """
    outcome_text, text = _sides(formula)
    frames = Frames(domain)
    outcome = _outcome(frames, outcome_text)
    columns = tuple(_columns(frames, text))
    if len(columns) > MOST_COLUMNS:
        raise JobError("formula", f"{len(columns)} columns", f"at most {MOST_COLUMNS}", "leave terms out")

    names = {name for column in (outcome, *columns) for name in column.names}
    known = {name: frames.known[name] for name in names if name in frames.known}
    design = Design(domain=domain, formula=formula, outcome=outcome, columns=columns, known=known)
    design.check_independent()
    return design


def formula_names(formula: Any) -> list[str]:
    """Return the names in a formula, without a domain: those between backticks, and identifiers."""
    bare = TEXTS.sub("", formula) if isinstance(formula, str) else ""
    return QUOTED.findall(bare) + re.findall(r"\b[^\W\d]\w*\b(?!\s*\()", QUOTED.sub("", bare))


def _sides(formula: Any) -> tuple[str, str]:
    """Return the texts of the outcome and of the terms."""
    sides = formula.split("~") if isinstance(formula, str) else []
    if len(sides) != 2 or not sides[0].strip() or not sides[1].strip():
        raise JobError("formula", safe_repr(formula), "OUTCOME ~ TERMS", 'write it as "cost ~ age + C(sex)"')
    return sides[0].strip(), sides[1].strip()


class Frames:
    """Cells of attributes as data frames, in which formulas are evaluated."""

    def __init__(self, domain: Domain) -> None:
        """Mark the cells with a known value of each axis: 1 for these and 0 for other cells.

        `known` has only axes with a cell of unknown value. A number has such a cell for nulls; an attribute of numbers
        has them for outside values and nulls, after its `listed` cells.
        """
        self.domain = domain
        self.known: dict[str, Floats] = {}
        for axis in domain.axes:
            inside = np.ones(axis.size)
            if isinstance(axis, Number):
                inside[max(axis.null_cell, 0) :] = axis.null_cell < 0
            elif axis.kind in NUMBERS:
                inside[axis.listed :] = 0
            if not inside.all():
                self.known[axis.name] = inside

    def names_in(self, expression: str) -> tuple[AttributeSet, tuple[str, ...]]:
        """Return the attributes and the numbers of an expression.

        Names in backticks may be no Python names, so they are replaced by placeholders before the expression is parsed.

        Raises
        ------
        JobError
            For an unknown name, or an unsupported part.
        """
        quoted = list[str]()

        def placeholder(match: re.Match[str]) -> str:
            quoted.append(match[1])
            return f"quoted_{len(quoted) - 1}_"

        try:
            tree = ast.parse(QUOTED.sub(placeholder, expression).strip(), mode="eval")
        except SyntaxError:
            raise unsupported(expression) from None
        # names of functions are no attributes
        function_names = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        names = list[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS):
                raise unsupported(ast.unparse(node))
            # other Python syntax is refused, because the expression is evaluated later
            if isinstance(node, ast.Attribute | ast.Subscript | ast.Lambda | ast.comprehension):
                raise unsupported(expression)
            if isinstance(node, ast.Name) and id(node) not in function_names:
                place = re.fullmatch(r"quoted_(\d+)_", node.id)
                names.append(quoted[int(place[1])] if place else node.id)
        for name in names:
            if name not in self.domain.axis_names:
                raise JobError("formula", f"{name!r}, which is no attribute", ", ".join(self.domain.axis_names),
                               nearest(name, self.domain.axis_names))  # fmt: skip
        numbers = [name for name in dict.fromkeys(names) if name in self.domain.number_names]
        attributes = [name for name in dict.fromkeys(names) if name not in numbers]
        return self.domain.ordered(attributes), tuple(numbers)

    def frame(self, cells: Mapping[str, Any], rows: int) -> DataFrame:
        """Return rows with given cells of some attributes; the other attributes have their first cell, numbers 1.

        `cells` has the numbers of cells by attribute. Numbers are 1 because a column is linear in them; their values
        come later.
        """
        import pandas as pd

        columns: dict[str, Any] = {name: np.ones(rows) for name in self.domain.number_names}
        for attribute in self.domain.attributes:
            cells_of_rows = np.asarray(cells.get(attribute.name, np.zeros(rows, np.int64)))
            if attribute.kind in NUMBERS:
                inside = np.where(cells_of_rows < attribute.listed, cells_of_rows, 0)
                values = np.array([value_of(attribute, int(cell), 0.5) for cell in inside])
                columns[attribute.name] = values if attribute.kind == "bins" else np.rint(values).astype(np.int64)
            else:
                shown = zip(attribute.labels, texts(attribute), strict=True)
                labels = [text if label is None else label for label, text in shown]
                columns[attribute.name] = pd.Categorical.from_codes(cells_of_rows, categories=labels)  # type: ignore[call-overload]
        return pd.DataFrame(columns)

    def grid(self, names: AttributeSet) -> DataFrame:
        """Return a row for each cell of some attributes, in row-major order."""
        shape = self.domain.shape(names)
        if (count := int(np.prod(shape, dtype=object))) > MOST_CELLS:
            raise JobError("formula", f"{' and '.join(names)} with {count:,} cells", f"at most {MOST_CELLS:,}",
                           "use fewer attributes in a term")  # fmt: skip
        places = np.indices(shape).reshape(len(names), count)
        return self.frame(dict(zip(names, places, strict=True)), count)

    def every_label(self, names: Iterable[str]) -> DataFrame:
        """Return rows in which each cell of some attributes occurs."""
        rows = max((self.domain[name].size for name in names), default=1)
        return self.frame({name: np.arange(rows) % self.domain[name].size for name in names}, rows)


def unsupported(part: str) -> JobError:
    return JobError("formula", f"{part!r}, which is not supported", PARTS, "leave it out, or add an attribute for it")


def _outcome(frames: Frames, text: str) -> DesignColumn:
    """Return the outcome as a column.

    A number alone, a boolean attribute, or an expression of attributes such as a condition can be the outcome.
    """
    attributes, numbers = frames.names_in(text)
    if numbers:
        if attributes or len(numbers) > 1 or QUOTED.sub(r"\1", text) != numbers[0]:
            raise unsupported(text)
        return DesignColumn(name=numbers[0], attributes=(), values=np.ones(()), numbers=numbers)

    # the name without backticks: a single attribute must have numbers or be boolean
    bare = QUOTED.sub(r"\1", text)
    if attributes == (bare,) and frames.domain[bare].kind not in (*NUMBERS, "boolean"):
        label, kind = frames.domain[bare].labels[0], frames.domain[bare].kind
        raise JobError("formula", f"the outcome {bare}, which has {kind}", "a number or a condition",
                       f"write it as {bare} == {label!r}")  # fmt: skip

    frame = frames.grid(attributes)
    # cells of a boolean are false and true, hence 0 and 1
    if attributes == (bare,) and frames.domain[bare].kind == "boolean":
        values = np.arange(len(frame), dtype=float)
    else:
        try:
            # a formula without intercept, whose single column is the expression as a number
            values = _matrix(f"0 + {{({text}) * 1.0}}", frame).to_numpy(np.float64)[:, 0]
        except (formulaic().errors.FormulaicError, TypeError, ValueError) as error:
            raise JobError("formula", text, "a number or a condition", first_line(error)) from None
    if np.ptp(_finite(text, values)) == 0:
        raise JobError("formula", f"the outcome {text}, which is the same for all cells", "an outcome that varies",
                       "name one of the labels")  # fmt: skip
    return DesignColumn(bare, attributes, values.reshape(frames.domain.shape(attributes)))


def _columns(frames: Frames, text: str) -> Iterable[DesignColumn]:
    """Yield the columns of the terms of a formula.

    `formulaic` codes categories by their labels in a frame, so the design is learnt from a frame with every label
    (`whole`) and then evaluated on the cells of each term's attributes. A term is a product such as a:b.
    """
    try:
        terms = list(formulaic().Formula(text, _context={}))
    except (formulaic().errors.FormulaicError, SyntaxError) as error:
        raise JobError("formula", safe_repr(text), PARTS, first_line(error)) from None
    parts = {str(term): _term_names(frames, term) for term in terms}
    if not terms:
        raise JobError("formula", safe_repr(text), "one term or more", "add a covariate")

    used = {name for attributes, _ in parts.values() for name in attributes}
    try:
        whole = _matrix(text, frames.every_label(sorted(used)))
    except (formulaic().errors.FormulaicError, TypeError, ValueError) as error:
        raise JobError("formula", safe_repr(text), PARTS, first_line(error)) from None
    spec = whole.model_spec
    for term, places in spec.term_indices.items():
        attributes, numbers = parts[str(term)]
        with np.errstate(all="ignore"):
            # all columns over the grid of this term's attributes, of which those of the term are taken
            matrix = spec.get_model_matrix(frames.grid(attributes)).to_numpy(np.float64)
        for place in places:
            name = spec.column_names[place]
            values = _finite(name, matrix[:, place]).reshape(frames.domain.shape(attributes))
            yield DesignColumn(name=name, attributes=attributes, values=values, numbers=numbers)


def _term_names(frames: Frames, term: Any) -> tuple[AttributeSet, tuple[str, ...]]:
    """Return the attributes and numbers of a term; a number may be a factor of a product, but not inside a function."""
    attributes, numbers = list[str](), list[str]()
    for factor in term.factors:
        if factor.eval_method.name == "LITERAL":
            continue
        named = f"`{factor.expr}`" if factor.eval_method.name == "LOOKUP" else factor.expr
        of_factor, summed = frames.names_in(named)
        if summed and (of_factor or factor.eval_method.name != "LOOKUP"):
            raise JobError("formula", f"{factor.expr!r} of a number", "numbers as they are, and products of two",
                           "define bins of the column as an attribute")  # fmt: skip
        attributes += of_factor
        numbers += summed
    return frames.domain.ordered(dict.fromkeys(attributes)), tuple(numbers)


def formulaic() -> Any:
    """Return the module that reads formulas. Raises JobError if it is not installed."""
    try:
        import formulaic.errors
    except ModuleNotFoundError:
        raise JobError("formula", "formulaic is not installed", "the extra dpscale[regression]",
                       "pip install 'dpscale[regression]'") from None  # fmt: skip
    return formulaic


def _matrix(text: str, frame: DataFrame) -> Any:
    with np.errstate(all="ignore"):
        return formulaic().model_matrix(text, frame, context={}, na_action="ignore")


def _finite(name: str, values: Floats) -> Floats:
    """Return the values. Raises JobError if one is not finite; `name` is the column or outcome in its text."""
    if not np.isfinite(values).all():
        raise JobError(
            "formula", f"{name}, which is not finite for some cells", "finite values", "use another function"
        )
    return values


def first_line(error: Exception) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return (text.splitlines() or ["fix it"])[0].partition(". ")[0].rstrip(".")[:120]
