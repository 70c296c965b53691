"""Choice of the default set of tests: `make test` runs it, `make test-all` the rest too.

    python -m tests.default_set times.jsonl

`times.jsonl` has the CPU seconds of each test (`cpu_times`). Tests of sensitivity, charges, kills and planted faults
are always in the default set. The others enter it in the order of their cost, the cheapest first, until the budget is
spent. `rest.txt` lists the tests outside, without their cases; a test that was not measured is in the default set.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path

REST = Path(__file__).with_name("rest.txt")
BUDGET = 560.0  # CPU seconds, without the start of pytest and the compilation of loops
ALWAYS = re.compile(r"sensitiv|stabilit|charge|kill|planted|forger|retry|spent|golden|neighbour|test_recompute", re.I)


def without_case(nodeid):
    """Return the name of a test without its case."""
    return nodeid.split("[")[0]


def choose(seconds):
    """Return the tests outside the default set, given the CPU seconds of each test with all its cases."""
    spent, rest = sum(value for name, value in seconds.items() if ALWAYS.search(name)), []
    for name, value in sorted(seconds.items(), key=lambda one: one[1]):
        if not ALWAYS.search(name):
            spent += value
            rest += [name] * (spent > BUDGET)
    return sorted(rest)


def read_seconds(path):
    seconds = Counter()
    for line in Path(path).read_text().splitlines():
        measured = json.loads(line)
        seconds[without_case(measured["id"])] += measured["cpu"]
    return seconds


def rest():
    """Return the names of the tests outside the default set."""
    return frozenset(REST.read_text().splitlines())


if __name__ == "__main__":
    found = read_seconds(sys.argv[1])
    outside = choose(found)
    REST.write_text("".join(f"{name}\n" for name in outside))
    inside = sum(found.values()) - sum(found[name] for name in outside)
    always = sum(value for name, value in found.items() if ALWAYS.search(name))
    print(f"{len(found) - len(outside)} of {len(found)} tests, {inside:.0f} of {sum(found.values()):.0f} CPU s")
    print(f"always in the set: {always:.0f} CPU s")
