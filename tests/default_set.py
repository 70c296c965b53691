"""Choice of the default set of tests: `make test` runs it, `make test-all` the rest too.

    python -m tests.default_set folder [folder/seconds]

The folders have the branches of each test, and its CPU seconds without the measurement of branches (`tests.costs`).
Tests of sensitivity, charges, kills and planted faults are always in the default set, of those on a cluster four files,
except the guards that REPEATED lists. The others enter it by the branches that no earlier test runs, and ten more, per
CPU second, the best first, until the budget is spent. `rest.txt` lists the tests outside, without their cases; a test
that was not measured keeps its place.

`make test` costs at most 600 CPU seconds with an empty cache of compiled loops. The tests get BUDGET of them; the
others compile loops before the first test and start the processes, which import all tests.
"""

import heapq
import pickle
import re
import sys
from pathlib import Path

import numpy as np

REST = Path(__file__).with_name("rest.txt")
BUDGET = 450.0  # CPU seconds as `tests.costs` measures them with compiled loops in the cache
ALWAYS = re.compile(r"sensitiv|stabilit|charge|kill|planted|forger|retry|spent|golden|neighbour|test_recompute", re.I)
CLUSTER = re.compile(r"tests/cluster/(?!test_(failures|jobs|kill_checks|refused_values)\.py)")
REPEATED = {  # costly guards, and the guard of the default set that detects the same fault
    "tests/audit/test_retry.py::test_cluster_that_loses_a_worker_draws_the_same":
        "tests/cluster/test_jobs.py::test_killed_workers_in_stage_do_not_change_release",
    "tests/cli/test_both_forms.py::test_fresh_run_is_new_release_and_new_charge":
        "tests/runs/test_spent_once.py::test_fresh_release_is_charged_again",
    "tests/links/test_ending.py::test_end_of_measured_run_reports_charge":
        "tests/cli/test_both_forms.py::test_end_reports_charge_once",
    "tests/runs/test_grown_laws.py::test_memory_and_a_kill_give_the_same_bytes":
        "tests/runs/test_adaptive.py::test_interrupted_run_resumes_with_same_bytes_and_one_charge",
}  # fmt: skip
LEAST = 1e-3  # CPU seconds of a test
TEST = 10  # branches that a test counts as, since it checks more than that its lines run


def without_case(nodeid):
    """Return the name of a test without its case."""
    return nodeid.split("[")[0]


def is_always(name):
    """Return whether a test is in the default set at any cost."""
    return bool(ALWAYS.search(name)) and not CLUSTER.match(name) and name not in REPEATED


def choose(costs, budget=BUDGET):
    """Return the tests outside the default set, given the CPU seconds and branches of each test."""
    always = [name for name in costs if is_always(name)]
    spent, seen = 0.0, 0
    for name in always:
        seconds, branches = costs[name]
        spent, seen = spent + seconds, seen | branches

    outside = [name for name in REPEATED if name in costs]
    waiting = [(-float("inf"), name) for name in sorted(set(costs) - set(always) - set(outside))]
    while waiting:
        _, name = heapq.heappop(waiting)
        seconds, branches = costs[name]
        now = value_of(seconds, branches & ~seen)
        if waiting and now > waiting[0][0]:  # others may be better by now
            heapq.heappush(waiting, (now, name))
        elif spent + seconds > budget:
            outside.append(name)
        else:
            spent, seen = spent + seconds, seen | branches
    return sorted(outside)


def value_of(seconds, branches):
    """Return the order of a test: the most for a CPU second first."""
    return -(branches.bit_count() + TEST) / max(seconds, LEAST)


def set_of(numbers):
    """Return a set of numbers as an integer with their bits."""
    numbers = np.asarray(numbers, np.int64)
    flags = np.zeros(numbers.max(initial=0) + 1, np.bool_)
    flags[numbers] = True
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def numbers_of(bits):
    """Return the numbers of a set."""
    content = np.frombuffer(bits.to_bytes(bits.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(content, bitorder="little"))


def read_costs(folder, seconds_folder=None):
    """Return the branches, and the CPU seconds and branches of each test, from the files of all processes.

    The second folder has other CPU seconds, of tests that were measured again.
    """
    if seconds_folder is not None:
        places, costs = read_costs(folder)
        again = read_costs(seconds_folder)[1]
        return places, {name: (again.get(name, cost)[0], cost[1]) for name, cost in costs.items()}
    places, costs = {}, {}
    for path in sorted(Path(folder).glob("*.pickle")):
        branches, tests = pickle.loads(path.read_bytes())
        numbers = np.array([places.setdefault(branch, len(places)) for branch in branches], np.int64)
        for name, (seconds, bits) in tests.items():
            before, known = costs.get(name, (0.0, 0))
            costs[name] = before + seconds, known | set_of(numbers[numbers_of(bits)])
    return list(places), costs


def rest():
    """Return the names of the tests outside the default set."""
    return frozenset(REST.read_text().splitlines())


def describe(costs, outside):
    """Return a sentence about the default set."""
    every = inside = 0
    for name, (_, branches) in costs.items():
        every |= branches
        inside |= branches if name not in outside else 0
    chosen = [seconds for name, (seconds, _) in costs.items() if name not in outside]
    return (f"{len(chosen)} of {len(costs)} tests, {sum(chosen):.0f} of"
            f" {sum(seconds for seconds, _ in costs.values()):.0f} CPU s,"
            f" {inside.bit_count()} of {every.bit_count()} branches")  # fmt: skip


if __name__ == "__main__":
    _, measured = read_costs(*sys.argv[1:])
    guards = sum(seconds for name, (seconds, _) in measured.items() if is_always(name))
    left_out = sorted({*choose(measured), *(rest() - set(measured))})
    REST.write_text("".join(f"{name}\n" for name in left_out))
    print(describe(measured, set(left_out)))
    print(f"always in the set: {guards:.0f} CPU s")
