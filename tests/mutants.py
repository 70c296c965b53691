"""Mutants of dpscale: how many the default set of tests detects, and how many of its survivors the whole set.

    python -m tests.mutants folder [--number 100] [--seed 63] [--limit 120]

The folder has the CPU seconds and branches of each test at this commit (`tests.costs`). A mutant is one change in a
function, on a line that some test reaches. It runs in a copy of the repository against the tests that reach the line,
the cheapest first, until one fails or the limit of CPU seconds is spent. A failure counts if the test passes without
the change. A survivor of the default set runs against the rest: tests that reach the line, and those that were not
measured and are in the folder of the same package.

Coverage sees no line of a compiled loop, so a loop is reached by the lines that name it. A changed loop is compiled
anew: without Numba, integers of NumPy overflow in other places.
"""

import argparse
import ast
import contextlib
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import psutil

from tests.default_set import read_costs, rest, set_of

ROOT = Path(__file__).parents[1]
MEASURED = 0.8  # share of the limit that the tests have as measured; a mutant may make them slower
BATCHES = (30, 300, None)  # tests of the first processes
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
FAILURE = r"^(?:FAILED|ERROR) ([^\s\[]+)"
PASSED = (0, 5)  # exit codes of pytest: every test passed, none was chosen
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple)  # an operand that has no difference and no quotient


@dataclass(frozen=True, eq=False)
class Mutant:
    """A change of one node: the lines of its statement, the bytes that it replaces, and the loop that it is in."""

    path: str
    line: int
    lines: range
    place: slice
    before: str
    after: str
    loop: str | None

    def __str__(self):
        return f"{self.path}:{self.line}: {short(self.before)}  ->  {short(self.after)}"


def short(text):
    """Return a text on one line, cut in the middle."""
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:38]} ... {text[-37:]}"


def changes(node):
    """Return the nodes that may replace a node."""
    match node:
        case ast.Compare(left=left, ops=operators, comparators=values):
            for place, operator in enumerate(operators):
                changed = [*operators[:place], COMPARISONS[type(operator)](), *operators[place + 1 :]]
                yield ast.Compare(left, changed, values)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            if not is_text(left) and not is_text(right):
                yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in OPERATORS:
            yield ast.AugAssign(target, OPERATORS[type(operator)](), value)
            yield ast.Pass()
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.And() if isinstance(operator, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Return(value=value) if value is not None and not is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()


def is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def is_text(node):
    return isinstance(node, TEXTS) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def walk(node, statement=None, loop=None, inside=False):
    """Yield the nodes of functions with their statement and the compiled loop around; no annotation and no message."""
    statement = node if isinstance(node, ast.stmt) else statement
    if inside:
        yield node, statement, loop
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.arguments):
        return
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if function and loop is None and any(is_compiling(one) for one in node.decorator_list):
        loop = node.name
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from walk(child, statement, loop, inside or function)


def is_compiling(decorator):
    return isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) in ("compiled", "njit")


def mutants_of(path, source):
    """Yield the mutants of a module."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, statement, loop in walk(ast.parse(source)):
        for change in changes(node):
            old, new = change if isinstance(change, tuple) else (node, change)
            place = slice(starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset)
            body = getattr(statement, "body", None)  # a condition has no lines of the body
            lines = range(statement.lineno, body[0].lineno if body else statement.end_lineno + 1)
            after = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
            yield Mutant(path, old.lineno, lines, place, ast.unparse(old), after, loop)


class Reach:
    """The tests that reach a mutant, from their branches."""

    def __init__(self, sources, branches, costs):
        self.sources, self.costs = sources, costs
        every = 0
        for _, reached in costs.values():
            every |= reached
        self.lines = defaultdict(list)  # numbers of branches by line
        for number, (path, *ends) in enumerate(branches):
            if every >> number & 1:
                for end in ends:
                    self.lines[path, end].append(number)

    @cached_property
    def names(self):
        """Lines that name a function, with the compiled loop around."""
        found = defaultdict(list)
        for path, source in self.sources.items():
            for node, statement, loop in walk(ast.parse(source)):
                if name := getattr(node, "id", None) or getattr(node, "attr", None):
                    found[name].append((path, node.lineno, statement.lineno, loop))
        return found

    def branches(self, mutant):
        """Return the branches of the line of a mutant, else of its statement, or of the calls of its loop."""
        if mutant.loop is not None:
            return self.calls(mutant.loop, set())
        numbers = self.lines.get((mutant.path, mutant.line), [])
        return numbers or [one for line in mutant.lines for one in self.lines.get((mutant.path, line), [])]

    def calls(self, loop, seen):
        """Return the branches of the lines that name a loop, or a loop that calls it."""
        seen.add(loop)
        numbers = []
        for path, *lines, around in self.names[loop]:
            if around is None:
                numbers += [one for line in lines for one in self.lines.get((path, line), [])]
            elif around not in seen:
                numbers += self.calls(around, seen)
        return numbers

    def tests(self, mutant):
        """Return the tests that reach a mutant, the cheapest first."""
        reached = set_of(self.branches(mutant))
        return sorted((name for name, cost in self.costs.items() if cost[1] & reached), key=self.seconds)

    def seconds(self, name):
        """Return the CPU seconds of a test, 1 of a test that was not measured."""
        return self.costs.get(name, (1.0, 0))[0]


class Copy:
    """A copy of the repository in which mutants are tried, beside a link to data that the repository has beside it."""

    def __init__(self, root, files, folder, limit=120.0, say=print):
        self.root, self.folder, self.place = root, folder, folder / root.name
        self.limit, self.say = limit, say
        self.sound, self.unsound, self.times = set(), set(), count(2_000_000_000)  # times of changed files, all new
        for file in files:
            (self.place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / file, self.place / file)
        if (root.parent / "shared").exists() and not (folder / "shared").exists():
            (folder / "shared").symlink_to(root.parent / "shared")

    @contextlib.contextmanager
    def changed(self, mutant):
        """Change a file for a while; yield the variables of the tests' environment."""
        path, original = self.place / mutant.path, self.root / mutant.path
        source = original.read_bytes()
        path.write_bytes(source[: mutant.place.start] + mutant.after.encode() + source[mutant.place.stop :])
        os.utime(path, (now := next(self.times), now))
        loops = b"base.compilation import" in source  # machine code of the file and of its callers is out of date
        try:
            with tempfile.TemporaryDirectory() if loops else contextlib.nullcontext() as cache:
                yield {"NUMBA_CACHE_DIR": cache} if loops else {}
        finally:
            shutil.copy2(original, path)

    def kills(self, tests):
        """Return the test that detects each mutant, or None, given the tests to try.

        It is "time" if the limit of CPU seconds is spent, and is not without the mutant.
        """
        killers = {}
        while waiting := [one for one in tests if one not in killers or killers[one] in self.unsound]:
            for mutant in waiting:
                left = [name for name in tests[mutant] if name not in self.unsound]
                with self.changed(mutant) as variables:
                    killer = self.run_batches(left, variables)
                slow = killer == "time" and self.run_batches(left, {}) == "time"
                killers[mutant] = None if slow else killer
                self.say(f"{mutant}  [{killers[mutant] or 'survives'}]")
            self.check(set(killers.values()) - {None, "time"} - self.sound - self.unsound)
        return killers

    def check(self, names):
        """Find the tests that fail without a mutant."""
        if names:
            _, output, _ = self.run(sorted(names), 100 * self.limit, {}, "--maxfail=1000")
            failed = names.intersection(re.findall(FAILURE, output, re.M))
            self.unsound |= failed
            self.sound |= names - failed

    def run_batches(self, names, variables):
        """Return the first test that fails, "time" if the limit is spent, or None."""
        limit = self.limit
        for size in BATCHES:
            batch, names = names[:size], names[size:] if size else []
            if not batch:
                break
            status, output, spent = self.run(batch, limit, variables)
            limit -= spent
            if status is None:
                return "time"
            if status not in PASSED:
                failed = re.search(FAILURE, output, re.M)
                return failed[1] if failed else batch[0]
        return None

    def run(self, names, limit, variables, stop_at="-x"):
        """Run tests until one fails; return the exit code, None if the limit is spent, the output, and the seconds."""
        command = [
            *(sys.executable, "-m", "pytest", stop_at, "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"),
            *("-m", "not (slow or airflow)", "-o", "addopts=", "-o", "timeout=120", *names),
        ]
        scratch = self.folder / "tmp"
        environment = {**os.environ, "PYTHONPATH": str(self.place), "TMPDIR": str(scratch), **variables}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(self.place / ".hypothesis", ignore_errors=True)
        scratch.mkdir()
        before = children_seconds()
        with (self.folder / "output").open("w+") as output:
            process = psutil.Popen(command, cwd=self.place, env=environment, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None and seconds_of(process) <= limit:
                time.sleep(0.1)
            status = process.poll()
            if status is None:
                stop(process)
            output.seek(0)
            return status, output.read(), children_seconds() - before

    def existing(self):
        """Return the names of the tests of the copy, and compile its loops."""
        if (self.place / "tests" / "compilation.py").exists():
            compile_loops = "from tests.compilation import compile_loops; compile_loops()"
            environment = {**os.environ, "PYTHONPATH": str(self.place)}
            subprocess.run([sys.executable, "-c", compile_loops], cwd=self.place, env=environment, check=True)
        _, output, _ = self.run(["--collect-only"], float("inf"), {})
        return set(re.findall(r"^(tests/[^\s\[@]+)", output, re.M))


def children_seconds():
    """Return the CPU seconds of the processes that this one started and that ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def seconds_of(process):
    """Return the CPU seconds of a process that runs, with its children."""
    seconds = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                seconds += sum(one.cpu_times()[:4])
    return seconds


def stop(process):
    """End a process and its children."""
    for one in [*process.children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def cheap(tests, reach, budget):
    """Return the first tests within a budget of CPU seconds."""
    chosen = []
    for name in tests:
        budget -= reach.seconds(name)
        if budget < 0:
            break
        chosen.append(name)
    return chosen


def of_package(names, path):
    """Return the tests in the folder of the package of a module."""
    package = Path(path).parts[1]
    return [name for name in names if name.startswith(f"tests/{package}/")]


def try_mutants(copy, reach, default, outside, number, seed):
    """Try mutants on the tests of the default set, and survivors on the rest; return the survivors of each."""
    every = [
        mutant
        for path, source in sorted(reach.sources.items())
        for mutant in mutants_of(path, source)
        if reach.branches(mutant)
    ]
    chosen = random.Random(seed).sample(every, min(number, len(every)))
    measured, unmeasured = default & set(reach.costs), sorted((default | outside) - set(reach.costs))
    copy.say(f"{len(chosen)} of {len(every)} mutants, {len(default)} tests in the default set,"
             f" {len(outside)} in the rest, {len(unmeasured)} of them not measured")  # fmt: skip

    def survivors(mutants, choose):
        killers = copy.kills({one: cheap(choose(one), reach, MEASURED * copy.limit) for one in mutants})
        return [mutant for mutant, killer in killers.items() if killer is None]

    alive = survivors(chosen, lambda mutant: [name for name in reach.tests(mutant) if name in measured])
    copy.say(f"{len(alive)} of {len(chosen)} survive the tests of the default set that reach them")
    alive = survivors(alive, lambda mutant: of_package([name for name in unmeasured if name in default], mutant.path))
    copy.say(f"{len(alive)} survive the tests of the default set")
    alive_in_all = survivors(alive, lambda mutant: [name for name in reach.tests(mutant) if name in outside]
                             + of_package([name for name in unmeasured if name in outside], mutant.path))  # fmt: skip
    for mutant in alive:
        copy.say(f"survivor of {'all tests' if mutant in alive_in_all else 'the default set'}: {mutant}")
    kills, whole = len(chosen) - len(alive), len(chosen) - len(alive_in_all)
    copy.say(f"the default set kills {kills} of {len(chosen)}, the whole set {whole}: {kills / max(whole, 1):.1%}")
    return alive, alive_in_all


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the costs of the tests")
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=63)
    parser.add_argument("--limit", type=float, default=120.0, help="CPU seconds of the tests of a mutant")
    parser.add_argument("--copy", type=Path, help="folder of the copy, kept for its compiled loops")
    options = parser.parse_args()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [file for file in listed.stdout.splitlines() if (ROOT / file).is_file()]
    sources = {file: (ROOT / file).read_text() for file in files if re.fullmatch(r"dpscale/.*\.py", file)}
    reach = Reach(sources, *read_costs(options.folder))
    with tempfile.TemporaryDirectory() if options.copy is None else contextlib.nullcontext(options.copy) as folder:
        copy = Copy(ROOT, files, Path(folder), options.limit, lambda text: print(text, flush=True))
        names = copy.existing()
        try_mutants(copy, reach, names - rest(), names & rest(), options.number, options.seed)


if __name__ == "__main__":
    main()
