"""Statements of a SQL text: their names, weights and syntax trees, and errors that point at a part of one.

sqlglot parses the text. Statements end at semicolons. Comments on lines of their own name and weigh the statement after
them:

    -- name: cases_by_region
    -- weight: 4
    SELECT region, COUNT(*) FROM visits GROUP BY region;
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from dpscale.base.display import nearest, safe_repr, type_of_value
from dpscale.base.errors import JobError
from dpscale.base.numerics import LazyModule
from dpscale.workload.listed import LABEL

if TYPE_CHECKING:
    import sqlglot
    from sqlglot import expressions as exp
else:
    sqlglot, exp = LazyModule("sqlglot"), LazyModule("sqlglot.expressions")

__all__ = ["DIALECT", "Statement", "exp", "is_select", "read_statements", "table_statement"]

DIALECT = "duckdb"
FIELD = "workload.query"
SETTINGS = re.compile(r"^[ \t]*--[ \t]*(\w+)[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
MOST_STATEMENTS = 1000  # of a text


@dataclass(frozen=True, eq=False)
class Statement:
    """One SELECT with its name.

    Attributes
    ----------
    name : str
    text : str
        As written.
    weight : float
        Factor of the weights of its queries.
    tree : sqlglot.expressions.Select
    dialect : str
    """

    name: str
    text: str
    weight: float
    tree: Any
    dialect: str

    def error(self, node: Any, takes: str, remedy: str, got: str = "") -> JobError:
        """Return the error of a part of the statement, with a note that underlines the part.

        Parameters
        ----------
        node : sqlglot.expressions.Expression
            The part at fault.
        takes, remedy : str
            Accepted forms, and the nearest form that works.
        got : str
            Reason, after the text of the part.
        """
        start, end = self.place(node)
        return pointed(self.name, self.text, start, end, f", {got}" if got else "", takes, remedy)

    def refuse(self, node: Any, takes: str, remedy: str, got: str = "") -> NoReturn:
        """Raise the error of a part of the statement."""
        raise self.error(node, takes, remedy, got)

    def place(self, node: Any) -> tuple[int, int]:
        """Return the first character of a part and the one after its last; the whole text if they are unknown.

        Parts of the syntax tree have the positions of their tokens in `meta`. A function may have none of its name,
        only of its arguments; then the name and the parenthesis just before the first argument (the pattern) belong to
        it.
        """
        places = [part.meta for part in node.walk() if "start" in part.meta]
        if not places or isinstance(node, exp.Query):
            return 0, len(self.text)
        start, end = min(place["start"] for place in places), max(place["end"] for place in places) + 1
        name_before = re.search(r"\w+\s*\(\s*$", self.text[:start])
        if isinstance(node, exp.Func) and name_before and "start" not in node.meta:
            start = name_before.start()  # of a function whose arguments alone have places
        return start, _closed(self.text, start, end)


def _closed(text: str, start: int, end: int) -> int:
    """Return the end of a part that includes the parentheses that it opens."""
    depth = text.count("(", start, end) - text.count(")", start, end)
    while depth > 0 and end < len(text):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return end


def pointed(name: str, text: str, start: int, end: int, got: str, takes: str, remedy: str) -> JobError:
    """Return the error of the characters from `start` to `end` of a statement, with a note that underlines them.

    `got`, `takes` and `remedy` are the parts of the message: what was found, what is allowed, and what to do. Only the
    first line is underlined.
    """
    line, column = text.count("\n", 0, start) + 1, start - (text.rfind("\n", 0, start) + 1)
    part = " ".join(text[start:end].split())
    shown = part if len(part) <= 60 else f"{part[:57]}…"
    error = JobError(f"sql {name}", f"{shown} at line {line}, character {column + 1}{got}", takes, remedy)
    written = text.splitlines()[line - 1] if text.strip() else ""
    marks = max(1, min(end - start, len(written) - column))
    error.add_note(f"{written}\n{' ' * column}{'^' * marks}")
    return error


def read_statements(text: str, weight: float = 1.0, dialect: str = DIALECT) -> tuple[Statement, ...]:
    """Return the statements of a text; those of the last texts are kept.

    Parameters
    ----------
    text : str
    weight : float
        Factor of the weights of all statements.
    dialect : str
        Dialect of sqlglot.

    Raises
    ------
    JobError
        If the text is no SQL, has no SELECT, or names or weighs a statement wrongly.
    """
    if not isinstance(text, str):
        raise JobError(FIELD, type_of_value(text), "a text of SELECT statements", "write it in quotes")
    return _read(text, weight, dialect)


@lru_cache(maxsize=4096)
def _read(text: str, weight: float, dialect: str) -> tuple[Statement, ...]:
    """Return the statements of a text, each with the name and weight that comments before it state."""
    known = [str(each.value) for each in sqlglot.Dialects if each.value]
    if dialect not in known:
        raise JobError("workload.dialect", safe_repr(dialect), "a dialect of sqlglot", nearest(str(dialect), known))

    statements: list[Statement] = []
    for sql, comments in _split(text, dialect):
        settings = {}
        for match in SETTINGS.finditer(sql):
            # settings are comments; the same text in quotes is none
            if match[0].strip().removeprefix("--").strip() in comments:  # not inside a text of the statement
                settings[match[1]] = match[2]
        name = settings.get("name", f"query-{len(statements) + 1}")
        if not re.match(LABEL, name):
            raise JobError(f"{FIELD}.name", safe_repr(name), "letters, digits, points, - and _", "choose another name")
        if name in (statement.name for statement in statements):
            raise JobError(f"{FIELD}.name", f"{name!r} twice", "a name of its own for each statement", "rename one")
        statements.append(
            Statement(
                name=name,
                text=sql,
                weight=weight * _weight(settings, name),
                tree=_tree(sql, name, dialect),
                dialect=dialect,
            )
        )

    if not statements:
        raise JobError(FIELD, "no statement", "one or several SELECT statements", "write one, such as"
                       " SELECT region, COUNT(*) FROM visits GROUP BY region")  # fmt: skip
    if len(statements) > MOST_STATEMENTS:
        raise JobError(FIELD, f"{len(statements):,} statements", f"at most {MOST_STATEMENTS:,}", "divide the text")
    return tuple(statements)


def _split(text: str, dialect: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the statements of a text, each with the comments before it, and the texts of its comments."""
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
    except sqlglot.errors.TokenError:
        raise JobError(FIELD, "a text or name that does not end", "SELECT statements", "close the quote") from None
    start, before = 0, set[str]()
    ends = [token.start for token in tokens if token.text == ";" and token.token_type.name == "SEMICOLON"]
    for end in [*ends, len(text)]:
        of_statement = [token for token in tokens if start <= token.start < end]
        comments = before | {comment.strip() for token in of_statement for comment in token.comments}
        if of_statement:
            yield text[start:end].strip(), comments
        before = {comment.strip() for token in tokens if token.start == end for comment in token.comments}
        start = end + 1


def _weight(settings: dict[str, str], name: str) -> float:
    """Return the weight that the comments of a statement state, 1 by default. Raises JobError for an invalid one."""
    try:
        weight = float(settings.get("weight", 1.0))
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise JobError(f"{FIELD}.weight", f"{safe_repr(settings['weight'])} of {name}", "a number above 0",
                       "write -- weight: 2")  # fmt: skip
    return weight


def _tree(text: str, name: str, dialect: str) -> Any:
    """Return the syntax tree of a statement. Raises JobError, with the place, for a text that is no statement."""
    try:
        tree = sqlglot.parse_one(text, read=dialect)
    except sqlglot.errors.ParseError as error:
        first = error.errors[0]
        lines = text.splitlines(keepends=True)[: (first["line"] or 1) - 1]
        end = sum(map(len, lines)) + (first["col"] or 1)
        start = max(0, end - len(first["highlight"] or " "))
        raise pointed(name, text, start, end, ", which cannot be read", "a SELECT statement", "correct the syntax",
                      ) from None  # fmt: skip
    except RecursionError:
        raise JobError(f"sql {name}", "too many levels of parentheses", "fewer levels", "remove some") from None
    return tree


def is_select(text: str) -> bool:
    """Return whether a text has statements, and is not the path of a file with them."""
    return re.match(r"\s*(--.*\n\s*)*(select|with)\b", text, re.IGNORECASE) is not None


def table_statement(by: Sequence[str], means: Sequence[str] = ()) -> str:
    """Return the statement of a table: the number of records, and means of numbers, of each group.

    Parameters
    ----------
    by : sequence of str
        Attributes of the groups; empty for the whole data.
    means : sequence of str
        Numbers.

    Examples
    --------
    >>> print(table_statement(["region"], ["fee"]))
    -- name: table
    SELECT "region", COUNT(*) AS "records", AVG("fee") AS "fee" FROM data GROUP BY "region"
    """
    groups, numbers = ([exp.to_identifier(name, quoted=True).sql() for name in names] for names in (by, means))
    columns = [*groups, 'COUNT(*) AS "records"', *(f"AVG({name}) AS {name}" for name in numbers)]
    return f"-- name: table\nSELECT {', '.join(columns)} FROM data" + f" GROUP BY {', '.join(groups)}" * bool(groups)
