"""Complete sentences of refusals, in one table: `refused(JobError)` compares a message with its row of messages.txt.

    with refused(JobError):
        Job.read(path)

    python -m tests.messages tests/job tests/test_domain.py::test_name [options of pytest]

The command runs the tests twice and writes their rows. A row is `test | error | sentence`. The rows of a test are in
the order of its refusals; `JobError ×3` stands for three that follow each other. A row without case is that of all
cases without rows of their own.

`…` in a row stands for any text. The command writes it for folders, digests, addresses, texts of libraries, and what
differs between the two runs. Write it by hand for a text that depends on the machine: a row that still agrees is kept.
"""

from __future__ import annotations

import difflib
import errno
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("messages.txt")
VARIABLE = "DPSCALE_WRITE_MESSAGES"  # folder into which the processes of the command write what was raised
RUNS = 2
ANY = "…"
TEMPORARY = re.escape(tempfile.gettempdir())
MASKED = (  # parts of a sentence that differ between machines, processes or runs
    rf"{TEMPORARY}/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?/[^/\s'\"),;:]+",
    rf"{TEMPORARY}/[^/\s'\"),;:]+",
    re.escape(str(ROOT)),
    re.escape(str(Path.home())) + r"(?=/)",
    r"\b((tcp|tls)://127\.0\.0\.1|(?<=://)(127\.0\.0\.1|localhost)):\d+",
    r"\bdb\d+\b",  # databases of the test server, by number
    rf"\b{datetime.now(UTC).date()}([T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?)?",
    r"\b\d+\.\d{7,}(e[+-]?\d+)?\b",  # all digits of a figure
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b",
    r"(?<=\.py:)\d+",
    "|".join(re.escape(text) for text in map(os.strerror, errno.errorcode) if " " in text),
    r"\d+ validation errors? for \w+(\\n[\w.]+)*\\n  Value error, ",
    r" \[type=\w+, input_value=.*?errors\.pydantic\.dev/\S+",
    r"(?<=: type )[^;]*?(?=;| in )",  # as pyarrow and Polars write it
)

Row = tuple[str, str]  # class of the error, sentence


class Messages:
    """Refusals of the test that runs, compared with their rows, or written into a folder."""

    def __init__(self, table: Path = TABLE) -> None:
        self.table, self.folder = table, os.environ.get(VARIABLE)
        self.start("")

    def start(self, test: str) -> None:
        """Begin a test, given as pytest names it."""
        self.test, self.raised = key(test), list[Row]()

    def take(self, error: Any) -> None:
        """Compare the next refusal of the test."""
        __tracebackhide__ = True
        number, row = len(self.raised), (type(error).__name__, without(error, encode(str(error))))
        self.raised.append(row)
        if self.folder:
            return
        rows = rows_of(read(self.table), self.test)
        if number >= len(rows):
            raise AssertionError(f"{self.describe()} has no row:\n  {join(row)}\n{self.command()}") from error
        if rows[number][0] != row[0] or not agrees(rows[number][1], encode(str(error))):
            difference = "\n".join(difflib.ndiff([join(rows[number])], [join(row)]))
            raise AssertionError(f"{self.describe()} differs from its row:\n{difference}\n{self.command()}") from error

    def collect(self, test: str) -> None:
        """Note that a test exists."""
        if self.folder:
            self.write(key(test), None)

    def end(self) -> None:
        """Finish a test that passed: there is no row without a refusal."""
        __tracebackhide__ = True
        if self.folder:
            self.write(self.test, self.raised)
        elif rows := rows_of(read(self.table), self.test)[len(self.raised) :]:
            raise AssertionError(
                f"{self.test}: {len(self.raised)} refusals, and a row more:\n  {join(rows[0])}\n{self.command()}"
            )

    def write(self, test: str, rows: list[Row] | None) -> None:
        with (Path(self.folder or "") / f"{os.getpid()}.json").open("a") as file:
            file.write(f"{json.dumps([test, rows])}\n")

    def describe(self) -> str:
        return f"refusal {len(self.raised)} of {self.test}"

    def command(self) -> str:
        return f"if the sentence is right, write it: python -m tests.messages {without_case(self.test)}"


class refused:
    """Expect an error whose class and complete sentence are the next row of the test."""

    def __init__(self, error: type[BaseException] | tuple[type[BaseException], ...], messages: Messages | None = None):
        self.expected: Any = pytest.raises(error)
        self.messages = MESSAGES if messages is None else messages

    def __enter__(self) -> pytest.ExceptionInfo[Any]:
        return self.expected.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        __tracebackhide__ = True
        if not self.expected.__exit__(kind, error, trace):
            return False
        self.messages.take(error)
        return True


def encode(text: str) -> str:
    """Return a text in one printable line."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def without_case(test: str) -> str:
    return test.split("[")[0]


def key(test: str) -> str:
    """Return the name of a test in the table; xdist appends the group of a test."""
    return re.sub(r"@[^\]]*$", "", test).replace(" | ", "/")


def join(row: Row) -> str:
    return " | ".join(row)


def agrees(written: str, sentence: str) -> bool:
    """Return whether a sentence is the one of a row."""
    return re.fullmatch(".*?".join(map(re.escape, written.split(ANY))), sentence) is not None


# The table


Table = dict[str, tuple[Row, ...]]


@cache
def read(path: Path) -> Table:
    """Return the rows of each test in the order of its refusals."""
    table: dict[str, list[Row]] = {}
    for line in path.read_text().split("\n")[:-1]:
        test, error, sentence = line.split(" | ", 2)
        name, _, count = error.partition(" ×")
        table.setdefault(test, []).extend([(name, sentence)] * int(count or 1))
    return {test: tuple(rows) for test, rows in table.items()}


def rows_of(table: Table, test: str) -> tuple[Row, ...]:
    return table.get(test) or table.get(without_case(test), ())


def format_table(table: Table) -> str:
    """Return the table as text, sorted by tests."""
    lines = []
    for test, rows in sorted(table.items()):
        for (error, sentence), equal in groupby(rows):
            count = len(list(equal))
            lines.append(" | ".join([test, f"{error} ×{count}" if count > 1 else error, sentence]))
    return "".join(f"{line}\n" for line in lines)


# Parts that vary


def without(error: BaseException, sentence: str) -> str:
    """Return a sentence without folders, digests, addresses and texts of libraries."""
    for text in sorted(foreign_texts(error), key=len, reverse=True):
        sentence = sentence.replace(encode(text), ANY)
    for pattern in MASKED:
        sentence = re.sub(pattern, ANY, sentence)
    return merge_wildcards(sentence)


def merge_wildcards(sentence: str) -> str:
    return re.sub(f"{ANY}(/?{ANY})+", ANY, sentence)


def foreign_texts(error: BaseException) -> Iterator[str]:
    """Yield the texts of the libraries that an error was raised from."""
    seen, waiting = {id(error)}, [error.__cause__, error.__context__]
    while waiting:
        if (cause := waiting.pop()) is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        waiting += [cause.__cause__, cause.__context__]
        if not is_raised_here(cause):
            texts = [str(cause), *str(cause).split("\n"), *map(str, cause.args)]
            texts += [fault["msg"] for fault in cause.errors()] if hasattr(cause, "errors") else []
            yield from (text for text in texts if " " in text.strip())


def is_raised_here(error: BaseException) -> bool:
    """Return whether a statement of this repository raised an error."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not last.tb_frame.f_code.co_filename.startswith(str(ROOT)):
        return False
    return linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno).strip().startswith("raise")


def common(first: str, second: str) -> str:
    """Return what two sentences have in common, with a wildcard for each other part."""
    words, others = (re.findall(rf"\d[\d.,]*\d|\w+|{ANY}|[^\w{ANY}]", text) for text in (first, second))
    parts = []
    for tag, start, end, *_ in difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        parts.append("".join(words[start:end]) if tag == "equal" else ANY)
    return merge_wildcards("".join(parts))


MESSAGES = Messages()


# Writing


def write_rows(arguments: Sequence[str], path: Path = TABLE) -> int:
    """Run tests and replace their rows; return the exit code of pytest."""
    code, runs, tests = 0, [], set[str]()
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "", "--tb=short", *arguments]
            code = subprocess.run(command, env=os.environ | {VARIABLE: folder}).returncode or code
            lines = [json.loads(line) for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
        tests |= {test for test, _ in lines}
        runs.append({test: [tuple(row) for row in rows] for test, rows in lines if rows is not None})
    table = {test: rows for test, rows in read(path).items() if exists(test)}
    path.write_text(format_table(replaced(table, runs, tests)))
    return code


def exists(test: str) -> bool:
    """Return whether a test of the table is in its file, which may take it from another one by its name."""
    path, _, name = without_case(test).partition("::")
    words = name.split("::")[-1].removeprefix("test_")
    return (ROOT / path).exists() and re.search(rf"(\btest_|\"){words}\b", (ROOT / path).read_text()) is not None


def replaced(table: Table, runs: Sequence[dict[str, list[Row]]], tests: Collection[str]) -> Table:
    """Return the table with the rows of the tests that passed in all runs, of all these tests."""
    table, functions = dict(table), dict[str, Table]()
    for test in sorted(set.intersection(*map(set, runs))):
        if len({tuple(error for error, _ in run[test]) for run in runs}) > 1:
            print(f"{test}: the refusals differ between runs in number or class; pytest.raises with match= suits it")
            continue
        rows = common_rows(rows_of(table, test), [run[test] for run in runs])
        functions.setdefault(without_case(test), {})[test] = rows
    for function, cases in functions.items():
        others = {test: table.pop(test) for test in list(table) if without_case(test) == function}
        rest = others.pop(function, None)
        every = {test: rows for test, rows in others.items() if test in tests} | cases
        if rest not in every.values():
            rest, count = Counter(every[test] for test in sorted(every)).most_common(1)[0]
            rest = rest if count > 1 else None
        if () not in every.values() and rest:
            every = {function: rest} | {test: rows for test, rows in every.items() if rows != rest}
        table |= {test: rows for test, rows in every.items() if rows}
    return table


def common_rows(old: Sequence[Row], runs: Sequence[list[Row]]) -> tuple[Row, ...]:
    """Return the rows of a test: the old one where it agrees with all runs, else what the runs have in common."""
    found = []
    for number, rows in enumerate(zip(*runs, strict=True)):
        kept = old[number] if len(old) == len(runs[0]) else None
        if kept and all(error == kept[0] and agrees(kept[1], sentence) for error, sentence in rows):
            found.append(kept)
            continue
        sentence = rows[0][1]
        for _, other in rows[1:]:
            sentence = common(sentence, other)
        found.append((rows[0][0], sentence))
    return tuple(found)


if __name__ == "__main__":
    sys.exit(write_rows([argument.split("[")[0] if "::" in argument else argument for argument in sys.argv[1:]]))
