"""The ledger under concurrent processes, kills, full disks and tampering, and its statement of the remaining budget."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st

from dpscale.base.errors import BudgetError, DpscaleError, JobError, TransientError
from dpscale.cli.ledger import ledger_text
from dpscale.ledger import Ledger, chain, schema as ledgerschema, sqlite_store as ledgerfile
from dpscale.ledger.account import Account, Cap, Limit, largest_epsilon, remaining_epsilon
from dpscale.ledger.request import Request
from dpscale.privacy.accounting import Cost, Spending, epsilon_of_mu, float_above, gdp_mu, root_above
from tests.messages import refused

DIGEST = "ab" * 32
DELTA = 1e-9
PROCESSES = 8


def gaussian(epsilon: float, delta: float = DELTA) -> Cost:
    return Cost(gaussian=Fraction(gdp_mu(epsilon, delta)) ** 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path) as opened:
        yield opened


@contextmanager
def open_database(path: Path) -> Iterator[Any]:
    """Open the database directly, without the ledger."""
    if "://" in str(path):
        import psycopg

        with psycopg.connect(path, autocommit=True, options="-c search_path=dpscale_ledger") as server:
            yield server
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


def release_rows(path: Path) -> dict[str, tuple[str, str]]:
    """Return cost and state by release, read without the ledger."""
    with open_database(path) as db:
        found = db.execute("SELECT release, cost, state FROM releases ORDER BY seq")
        return {release: (cost, state) for release, cost, state in found}


# One process


def test_release_passes_all_states(ledger: Ledger, path: Path) -> None:
    assert not ledger.set_cap("adult", 2.0, DELTA).below_spent
    assert ledger.charge("adult", "r1", gaussian(1), DIGEST, 1.0, DELTA) == "reserved"
    assert ledger.commit("r1") == ledger.commit("r1") == "committed"
    assert ledger.charge("adult", "r1", gaussian(1), DIGEST) == "committed"
    assert ledger.publish("r1") == ledger.publish("r1") == "released"
    assert ledger.charge("adult", "r1", gaussian(1), DIGEST) == "released"
    assert len(release_rows(path)) == 1
    ledger.verify()


def test_charge_persists_after_reopening(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge("adult", "r1", gaussian(1), DIGEST)
    with Ledger.open(path, create=False) as ledger:
        assert ledger.charge("adult", "r1", gaussian(1), DIGEST) == "reserved"
        ledger.verify()


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "other"},
        {"cost": gaussian(1.1)},
        {"plan_digest": "cd" * 32},
        {"cost": gaussian(0.9)},
    ],
)
def test_release_with_other_fields_is_refused(ledger: Ledger, change: dict[str, object]) -> None:
    charge = {"dataset": "adult", "release": "r1", "cost": gaussian(1), "plan_digest": DIGEST}
    ledger.charge(**charge)  # type: ignore[arg-type]
    with refused(BudgetError):
        ledger.charge(**(charge | change))  # type: ignore[arg-type]


def test_round_is_decided_once(ledger: Ledger) -> None:
    ledger.charge("adult", "r1", gaussian(1), DIGEST)
    for number in (0, 0, 1):
        ledger.decide("r1", "", number, DIGEST)
    with refused(BudgetError):
        ledger.decide("r1", "", 1, "cd" * 32)
    ledger.commit("r1")
    ledger.decide("r1", "", 1, DIGEST)
    for release in ("r1", "unknown"):
        with pytest.raises(BudgetError):
            ledger.decide(release, "", 2, DIGEST)
    ledger.verify()


def test_number_of_two_parts_is_two_decisions(ledger: Ledger) -> None:
    ledger.charge("adult", "r1", gaussian(1), DIGEST)
    ledger.decide("r1", "visits", 0, DIGEST)
    assert ledger.is_decided("r1", "visits", 0)
    assert not ledger.is_decided("r1", "people", 0)
    assert not ledger.is_decided("r1", "", 0)
    ledger.decide("r1", "people", 0, "cd" * 32)
    for part, digest in (("visits", "cd" * 32), ("people", DIGEST)):
        with refused(BudgetError):
            ledger.decide("r1", part, 0, digest)
    ledger.verify()
    assert len(ledger.heads()) == 3


def write_version_1(path: Path) -> None:
    """Write a ledger of schema version 1, which has no rounds, with one release."""
    with open_database(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA application_id = {ledgerschema.APPLICATION_ID}")
        for statement in ledgerschema.schema(1):
            db.execute(statement)
        db.execute("INSERT INTO schema_version VALUES (1, 'long ago')")
        db.execute(
            "INSERT INTO releases (release, dataset, plan_digest, cost, state, reserved_at)"
            " VALUES ('old', 'adult', ?, ?, 'reserved', 'then')",
            (DIGEST, json.dumps(gaussian(1).to_dict(), sort_keys=True)),
        )


def test_ledger_of_version_1_is_upgraded(path: Path) -> None:
    write_version_1(path)
    names = set()
    for _ in range(2):
        with Ledger.open(path) as ledger:
            ledger.verify()
            names.add(ledger.name)
            ledger.decide("old", "", 0, DIGEST)
            assert ledger.charge("adult", "old", gaussian(1), DIGEST) == "reserved"
    with open_database(path) as db:
        assert [version for (version,) in db.execute("SELECT version FROM schema_version")] == [1, ledgerschema.VERSION]
    assert len(names) == 1


def test_concurrent_processes_upgrade_one_ledger(path: Path) -> None:
    write_version_1(path)
    children = [multiprocessing.get_context("fork").Process(target=open_and_verify, args=(path,)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8


def open_and_verify(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.set_cap("other", 9.0, 1e-9)
        ledger.verify()


def test_states_do_not_go_back_or_skip(ledger: Ledger) -> None:
    ledger.charge("adult", "r1", gaussian(1), DIGEST)
    with refused(BudgetError):
        ledger.publish("r1")
    ledger.commit("r1")
    ledger.publish("r1")
    with refused(BudgetError):
        ledger.commit("r1")
    for step in (ledger.commit, ledger.publish):
        with refused(BudgetError):
            step("unknown")


@pytest.mark.parametrize(
    "change",
    [
        {"cost": Cost()},
        {"cost": None},
        {"cost": 1.0},
        {"release": ""},
        {"release": " "},
        {"release": None},
        {"dataset": ""},
        {"release": "a\nb"},
        {"release": "\ud800"},
        {"plan_digest": "abc"},
        {"plan_digest": "AB" * 32},
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"delta": 1.0},
        {"delta": "x"},
    ],
)
def test_invalid_charge_is_refused(ledger: Ledger, path: Path, change: dict[str, object]) -> None:
    charge = {"dataset": "adult", "release": "r1", "cost": gaussian(1), "plan_digest": DIGEST}
    with refused((BudgetError, JobError)):
        ledger.charge(**(charge | change))  # type: ignore[arg-type]
    assert release_rows(path) == {}


def test_cost_with_too_many_digits_is_refused_until_coarsened(ledger: Ledger) -> None:
    cost = Cost(zcdp=Fraction(1, 3**10000))
    with refused(BudgetError):
        ledger.charge("adult", "r1", cost, DIGEST)
    assert ledger.charge("adult", "r1", cost.coarsened(), DIGEST) == "reserved"


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0, 0.1),
        (-1, 0.1),
        (float("inf"), 0.1),
        (1, 1),
        (1, -0.1),
        ("1", 0),
        (10**400, 0.1),
        pytest.param(10**5000, 0, id="endless"),
        (1, 10**400),
        (1e308, 1e-9),
        (2e12, 0),
    ],
)
def test_invalid_cap_is_refused(ledger: Ledger, epsilon: float, delta: float) -> None:
    with refused(JobError):
        ledger.set_cap("adult", epsilon, delta)


@pytest.mark.parametrize("protects", ["person", 5, ("person",)])
def test_protects_must_be_a_protection(ledger: Ledger, path: Path, protects: Any) -> None:
    with refused(JobError):
        ledger.set_cap("adult", 1.0, 1e-9, protects=protects)
    with refused(JobError):
        ledger.charge("adult", "r1", gaussian(1), DIGEST, protects=protects)
    assert release_rows(path) == {}


@pytest.mark.parametrize("delta", [1e-9, 0.0])
def test_infinite_cap_of_older_version_is_shown(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, delta: float) -> None:
    from dpscale.ledger import account as cap

    with monkeypatch.context() as patch:
        patch.setattr(cap, "MOST", math.inf)
        ledger.set_cap("adult", 1e308, delta)
    entry = ledger.summary("adult")["datasets"]["adult"]
    assert (entry["cap"]["epsilon"], entry["remaining"], entry["remaining_epsilon"]) == (1e308, None, None)
    assert "has no effect" in entry["notes"][0]
    assert "  left " not in ledger_text(ledger.summary())
    assert ledger.charge("adult", "r1", gaussian(1) if delta else Cost(pure=Fraction(1)), DIGEST) == "reserved"
    ledger.set_cap("adult", 10.0, delta)
    assert ledger.summary("adult")["datasets"]["adult"]["remaining_epsilon"] > 5


@pytest.mark.parametrize("epsilon", [1e12, 1e-320])
def test_largest_and_smallest_caps_are_shown(ledger: Ledger, epsilon: float) -> None:
    for name, delta in (("one", 1e-9), ("two", 0.0)):
        ledger.set_cap(name, epsilon, delta)
    assert "left" in ledger_text(ledger.summary())


def test_all_releases_are_admitted_without_cap(ledger: Ledger) -> None:
    for k in range(5):
        ledger.charge("adult", f"r{k}", gaussian(10), DIGEST)
    entry = ledger.summary("adult")["datasets"]["adult"]
    assert entry["cap"] is entry["remaining_epsilon"] is None
    assert entry["spent"]["epsilon"] > 20
    assert entry["spent"]["delta"] == DELTA


def test_datasets_have_separate_budgets(ledger: Ledger) -> None:
    ledger.set_cap("a", 1.0, DELTA)
    ledger.set_cap("b", 1.0, DELTA)
    ledger.charge("a", "r1", gaussian(1), DIGEST)
    ledger.charge("b", "r2", gaussian(1), DIGEST)
    with pytest.raises(BudgetError):
        ledger.charge("a", "r3", gaussian(0.01), DIGEST)


def test_charge_of_exactly_the_cap_is_admitted(ledger: Ledger) -> None:
    for k, epsilon in enumerate([0.01, 0.1, 1.0, 3.0, 10.0]):
        ledger.set_cap(f"g{k}", epsilon, DELTA)
        ledger.charge(f"g{k}", f"g{k}", gaussian(epsilon), DIGEST, epsilon, DELTA)
        ledger.set_cap(f"z{k}", epsilon, DELTA)
        halves = [Cost(gaussian=gaussian(epsilon).gaussian * share) for share in (Fraction(1, 3), Fraction(2, 3))]
        for half, cost in enumerate(halves):
            ledger.charge(f"z{k}", f"z{k}.{half}", cost, DIGEST, epsilon, DELTA)
        ledger.set_cap(f"p{k}", epsilon, 0)
        ledger.charge(f"p{k}", f"p{k}", Cost(pure=epsilon), DIGEST, epsilon)


def test_cap_below_spending_is_reported_and_stops_releases(ledger: Ledger) -> None:
    ledger.charge("adult", "r1", gaussian(1), DIGEST)
    change = ledger.set_cap("adult", 0.5, DELTA)
    assert change.below_spent
    assert change.spent_epsilon == pytest.approx(1)
    assert "nothing more is admitted" in str(change)
    with refused(BudgetError):
        ledger.charge("adult", "r2", gaussian(0.001), DIGEST)
    assert ledger.charge("adult", "r1", gaussian(1), DIGEST) == "reserved"  # already paid
    assert not ledger.set_cap("adult", 2.0, DELTA).below_spent
    ledger.charge("adult", "r2", gaussian(0.001), DIGEST)
    caps = ledger.summary("adult")["datasets"]["adult"]
    assert [cap["epsilon"] for cap in [*caps["former_caps"], caps["cap"]]] == [0.5, 2.0]


def test_summary_is_json_and_adds_up(ledger: Ledger) -> None:
    ledger.set_cap("adult", 2.0, DELTA)
    ledger.charge("adult", "r1", gaussian(1), DIGEST, 1.0, DELTA)
    ledger.charge("adult", "r2", Cost(zcdp="1/1000", pure="1/100"), DIGEST)
    ledger.commit("r1")
    ledger.set_cap("pure", 1.0, 0)
    summary = ledger.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    adult = summary["datasets"]["adult"]
    assert [row["state"] for row in adult["releases"]] == ["committed", "reserved"]
    total = gaussian(1) + Cost(zcdp="1/1000", pure="1/100")
    assert adult["spent"]["epsilon"] == epsilon_of_mu(root_above(total.squared_mu), DELTA)
    squared_mu = adult["spent"]["squared_mu"]  # rounded up, by less than a step of a float
    assert math.nextafter(squared_mu, 0) < total.squared_mu <= squared_mu
    assert adult["reserved"]["squared_mu"] == float_above(Cost(zcdp="1/1000", pure="1/100").squared_mu)
    assert adult["remaining"] == pytest.approx(gdp_mu(2, DELTA) ** 2 - squared_mu)
    assert adult["currency"].startswith("gdp")
    assert any("counted together" in note for note in adult["notes"])
    assert list(ledger.summary("pure")["datasets"]) == ["pure"]
    with refused(BudgetError):
        ledger.summary("no-such")


def test_infinite_epsilon_is_null_in_summary(ledger: Ledger) -> None:
    ledger.charge("adult", "r1", gaussian(1), DIGEST)
    ledger.set_cap("adult", 1.0, 0)
    assert ledger.summary()["datasets"]["adult"]["spent"]["epsilon"] is None


def test_ledger_writes_no_logs_and_no_output(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        ledger.set_cap("adult", 1.0, DELTA)
        ledger.charge("adult", "r1", gaussian(1), DIGEST)
        with pytest.raises(BudgetError):
            ledger.charge("adult", "r2", gaussian(1), DIGEST)
        ledger.summary()
        ledger.verify()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


# What would still fit

KINDS = {
    "gaussian": gaussian,
    "pure": lambda epsilon, delta=DELTA: Cost(pure=epsilon),
}


def printed_epsilon(error: BudgetError) -> float:
    found = re.search(r"ask for epsilon = ([^\s,;]+)", str(error))
    assert found, str(error)
    return float(found[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("delta", [DELTA, 1e-6])
def test_printed_epsilon_is_admitted(ledger: Ledger, kind: str, before: str, delta: float) -> None:
    ledger.set_cap("adult", 1.0, DELTA)
    ledger.charge("adult", "r1", KINDS[before](0.6 if before == "gaussian" else 0.12), DIGEST)
    with refused(BudgetError) as caught:
        ledger.charge("adult", "r2", KINDS[kind](1.5, delta), DIGEST, 1.5, delta)
    assert caught.value.exit_code == 3
    fits = printed_epsilon(caught.value)
    with pytest.raises(BudgetError):
        ledger.charge("adult", "r2", KINDS[kind](fits * 1.001, delta), DIGEST, fits, delta)
    assert ledger.charge("adult", "r2", KINDS[kind](fits, delta), DIGEST, fits, delta) == "reserved"


@settings(max_examples=40, deadline=None)
@given(
    cap=st.builds(Cap, st.floats(0.01, 20), st.sampled_from([1e-12, 1e-9, 1e-5])),
    share=st.floats(0.01, 1.5),
    kind=st.sampled_from(["gaussian", "pure"]),
    before=st.sampled_from(["gaussian", "pure"]),
)
def test_largest_epsilon_is_admitted_and_maximal(cap: Cap, share: float, kind: str, before: str) -> None:
    history = Spending().plus(KINDS[before](cap.epsilon * share, cap.delta))
    fits = largest_epsilon([Limit(cap, history)], KINDS[kind](1.0, cap.delta), cap.delta)
    if fits:
        assert cap.admits(history.plus(KINDS[kind](fits, cap.delta)))
    assert not cap.admits(history.plus(KINDS[kind](fits * 1.001 + 1e-9, cap.delta)))


def test_remaining_epsilon_depends_on_currency_of_cap() -> None:
    quarter = Spending().plus(Cost(pure="1/4"))
    assert remaining_epsilon(Cap(1.0, 0), quarter) == pytest.approx(0.75, rel=1e-5)
    assert remaining_epsilon(Cap(1.0, DELTA, "pure"), quarter) == pytest.approx(0.75, rel=1e-5)
    assert remaining_epsilon(Cap(1.0, DELTA), quarter) < 0.97
    assert remaining_epsilon(Cap(1.0, 0), Spending().plus(Cost(gaussian="1/4"))) == 0
    assert remaining_epsilon(Cap(1.0, DELTA), Spending()) == pytest.approx(1.0, rel=1e-5)


# Many processes


def run_processes(target: Callable[..., None], *arguments: object, count: int = PROCESSES) -> list[str]:
    """Run `target(number, barrier, answers, *arguments)` in simultaneous processes and return their answers.

    The processes are forked from a server that has imported only modules of tests and has no open ledger.
    """
    context = multiprocessing.get_context("forkserver")
    barrier, answers = context.Barrier(count), context.Queue()
    processes = [context.Process(target=target, args=(k, barrier, answers, *arguments)) for k in range(count)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return found


def race_for_budget(
    number: int, barrier: threading.Barrier, answers: multiprocessing.Queue[str], path: Path, kind: type[Ledger]
) -> None:
    cost = gaussian(0.4)  # three of them fit in epsilon 0.75, four do not
    with kind.open(path) as ledger:
        ledger.barrier = barrier  # type: ignore[attr-defined]
        barrier.wait()
        try:
            answers.put(ledger.charge("adult", f"r{number}", cost, DIGEST, 0.4, DELTA))
        except DpscaleError as error:
            answers.put(type(error).__name__)


def admitted_within_cap(path: Path) -> bool:
    """Return whether the recorded costs stay within the cap, computed from the rows without the ledger."""
    total = Cost.total(Cost.from_dict(json.loads(cost)) for cost, _ in release_rows(path).values())
    return total.epsilon(DELTA) <= 0.75


class NaiveLedger(Ledger):
    """Planted fault: the history is read and the release inserted without a transaction, while other processes read."""

    def _check_sound(self, db: Any) -> None:
        pass

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Any]:
        db = self._store.db  # type: ignore[attr-defined]
        for table in ledgerschema.LINKED:  # the hash chain would stop them by itself
            db.execute(f"DROP TRIGGER IF EXISTS {table}_linked")
        chain.append = lambda *_: ""
        yield db

    def charge(self, *arguments: Any, **named: Any) -> str:
        read, seen = Request.account, list[Account]()

        def account(request: Request, db: Any) -> Account:
            if not seen:
                seen.append(read(request, db))
                self.barrier.wait()  # type: ignore[attr-defined]
            return seen[0]

        with mock.patch.object(Request, "account", account):
            return super().charge(*arguments, **named)


def test_concurrent_processes_cannot_exceed_cap(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.set_cap("adult", 0.75, DELTA)
    answers = run_processes(race_for_budget, path, Ledger)
    assert sorted(answers) == ["BudgetError"] * 5 + ["reserved"] * 3
    assert len(release_rows(path)) == 3
    assert admitted_within_cap(path)


def test_race_detects_ledger_without_transaction(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.set_cap("adult", 0.75, DELTA)
    assert run_processes(race_for_budget, path, NaiveLedger) == ["reserved"] * 8
    assert not admitted_within_cap(path)


def charge_same_release(
    number: int, barrier: threading.Barrier, answers: multiprocessing.Queue[str], path: Path
) -> None:
    barrier.wait()
    with Ledger.open(path) as ledger:  # the creation is raced for as well
        answers.put(ledger.charge("adult", "r", gaussian(0.4), DIGEST))


def test_concurrent_charges_of_one_release_make_one_row(path: Path) -> None:
    assert run_processes(charge_same_release, path) == ["reserved"] * 8
    assert list(release_rows(path)) == ["r"]
    assert [name for name in os.listdir(path.parent) if name.endswith(".new")] == []
    with Ledger.open(path) as ledger:
        ledger.verify()


def test_create_file_keeps_existing_ledger(filled_path: Path) -> None:
    before = release_rows(filled_path)
    ledgerfile.create_file(filled_path)
    assert release_rows(filled_path) == before
    assert len(before) == 2


def test_threads_share_open_ledger(ledger: Ledger, path: Path) -> None:
    ledger.set_cap("adult", 0.75, DELTA)
    refused: list[BudgetError] = []

    def charge(number: int) -> None:
        try:
            ledger.charge("adult", f"r{number}", gaussian(0.4), DIGEST)
        except BudgetError as error:
            refused.append(error)

    threads = [threading.Thread(target=charge, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(refused), len(release_rows(path))) == (5, 3)


# Killed at any point


def run_in_child(act: Callable[[], None], after: float | None = None) -> int:
    """Fork, run `act`, kill the child after `after` seconds if given, and return its wait status."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


RELEASES = [f"r{k}" for k in range(4)]


def publish_releases(ledger: Ledger) -> None:
    """Charge, commit and publish all releases, as a job does; may be repeated after an interruption."""
    for release in RELEASES:
        state = ledger.charge("adult", release, gaussian(0.1), DIGEST)
        if state != "released":
            ledger.commit(release)
            ledger.publish(release)


def assert_consistent(path: Path) -> None:
    """Check that each row is complete and that releases were recorded in order."""
    with Ledger.open(path) as ledger:
        ledger.verify()
    found = release_rows(path)
    assert list(found) == RELEASES[: len(found)]
    for cost, _ in found.values():
        assert Cost.from_dict(json.loads(cost)) == gaussian(0.1)
    assert all(state == "released" for _, state in list(found.values())[:-1])


def make_killed_publisher(path: Path, steps: int) -> Callable[[], None]:
    """Return a function that publishes the releases and is killed at the given step of the SQLite virtual machine."""

    def act() -> None:
        left = iter(range(steps))

        def tick() -> int:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return 0

        with Ledger.open(path) as ledger:
            ledger._store.db.set_progress_handler(tick, 1)
            publish_releases(ledger)

    return act


def count_steps(path: Path) -> int:
    steps = 0

    def tick() -> int:
        nonlocal steps
        steps += 1
        return 0

    with Ledger.open(path) as ledger:
        ledger.set_cap("adult", 5.0, DELTA)
        ledger._store.db.set_progress_handler(tick, 1)
        publish_releases(ledger)
    return steps


def kill_and_resume(tmp_path: Path, kills: int) -> None:
    """Make half of the kills at evenly spaced SQLite steps and half at random times, and resume after each."""
    steps = count_steps(tmp_path / "dry.sqlite")
    chance = random.Random(kills)
    partial = 0
    for kill in range(kills):
        path = tmp_path / f"{kill}.sqlite"
        with Ledger.open(path) as ledger:
            ledger.set_cap("adult", 5.0, DELTA)
        at_step = kill % 2 == 0
        act = make_killed_publisher(path, steps * kill // kills if at_step else 10**9)
        status = run_in_child(act, None if at_step else chance.uniform(0.001, 0.03))
        assert os.WIFSIGNALED(status) or not at_step
        assert_consistent(path)
        partial += at_step and 0 < len(release_rows(path)) < len(RELEASES)
        with Ledger.open(path) as ledger:
            publish_releases(ledger)
        assert_consistent(path)
        assert [state for _, state in release_rows(path).values()] == ["released"] * len(RELEASES)
    assert partial >= kills / 10  # or the kills at steps came too early or too late to show anything


def test_killed_job_leaves_consistent_ledger_and_resumes(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 12)


@pytest.mark.slow
def test_killed_job_leaves_consistent_ledger_and_resumes_500_times(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 500)


def test_consistency_check_detects_incomplete_row(path: Path) -> None:
    with Ledger.open(path) as ledger:
        publish_releases(ledger)
    assert_consistent(path)
    with open_database(path) as db, without_triggers(db):
        db.execute("UPDATE releases SET cost = '{}' WHERE release = 'r3'")
    with refused(BudgetError):
        assert_consistent(path)


def test_kill_during_creation_leaves_no_partial_ledger(tmp_path: Path) -> None:
    chance = random.Random(1)
    for kill in range(20):
        path = tmp_path / f"{kill}.sqlite"
        run_in_child(lambda path=path: Ledger.open(path).close(), chance.uniform(0.0005, 0.02))  # type: ignore[misc]
        with Ledger.open(path) as ledger:
            ledger.verify()
            publish_releases(ledger)
        assert_consistent(path)


def test_ledger_refuses_use_after_fork(ledger: Ledger, path: Path) -> None:
    def act() -> None:
        try:
            ledger.charge("adult", "r1", gaussian(1), DIGEST)
        except BudgetError as error:
            os._exit(7 if "another process" in str(error) else 8)

    assert os.WEXITSTATUS(run_in_child(act)) == 7
    assert release_rows(path) == {}


# Tampering


@contextmanager
def without_triggers(db: sqlite3.Connection) -> Iterator[None]:
    """Drop the triggers and restore them, as a determined attacker would."""
    triggers = ledgerschema.trigger_statements()
    for name in [statement.split()[2] for statement in triggers]:
        db.execute(f"DROP TRIGGER {name}")
    yield
    for statement in triggers:
        db.execute(statement)


ROW = "'r9', 'adult', '" + DIGEST + "', '{}', 'reserved', 'now'"
TAMPERING = [
    "DELETE FROM releases",
    "DELETE FROM releases WHERE release = 'r1'",
    "DELETE FROM caps",
    "UPDATE caps SET epsilon = 100",
    "UPDATE releases SET cost = '{}'",
    "UPDATE releases SET dataset = 'other'",
    "UPDATE releases SET release = 'other' WHERE release = 'r1'",
    "UPDATE releases SET seq = 77 WHERE release = 'r1'",
    "UPDATE releases SET plan_digest = replace(plan_digest, 'a', 'b')",
    "UPDATE releases SET epsilon = 0.001 WHERE release = 'r1'",
    "UPDATE releases SET reserved_at = ''",
    "UPDATE releases SET state = 'reserved' WHERE release = 'r1'",
    "UPDATE releases SET state = 'committed', committed_at = 'x', cost = '{}' WHERE release = 'r2'",
    "UPDATE releases SET state = 'released', released_at = 'x' WHERE release = 'r2'",
    "UPDATE releases SET state = 'released', released_at = 'x', committed_at = 'y' WHERE release = 'r1'",
    "INSERT OR REPLACE INTO releases (release, dataset, plan_digest, cost, state, reserved_at) VALUES ("
    + ROW.replace("r9", "r1")
    + ")",
    "INSERT OR REPLACE INTO releases (seq, release, dataset, plan_digest, cost, state, reserved_at) VALUES (1, "
    + ROW
    + ")",
    "INSERT INTO releases (release, dataset, plan_digest, cost, state, reserved_at) VALUES ("
    + ROW.replace("reserved", "released")
    + ")",
    "INSERT OR REPLACE INTO caps (seq, dataset, epsilon, delta, set_at) VALUES (1, 'adult', 100, 0.1, 'now')",
    "UPDATE identity SET id = '" + "c" * 32 + "'",
    "DELETE FROM identity",
    "INSERT INTO identity VALUES ('" + "c" * 32 + "')",
    "DELETE FROM rounds",
    "UPDATE rounds SET digest = replace(digest, 'a', 'b')",
    "INSERT OR REPLACE INTO rounds (release, part, round, digest) VALUES ('r2', '', 0, '" + "c" * 64 + "')",
    "INSERT OR REPLACE INTO rounds (seq, release, part, round, digest) VALUES (1, 'r2', '', 7, '" + DIGEST + "')",
    "INSERT INTO rounds (release, part, round, digest) VALUES ('r1', '', 1, '" + DIGEST + "')",
    "INSERT INTO rounds (release, part, round, digest) VALUES ('nobody', '', 1, '" + DIGEST + "')",
]


@pytest.fixture
def filled_path(path: Path) -> Path:
    with Ledger.open(path) as ledger:
        ledger.set_cap("adult", 5.0, DELTA)
        ledger.charge("adult", "r1", gaussian(1), DIGEST, 1.0, DELTA)
        ledger.commit("r1")
        ledger.charge("adult", "r2", gaussian(1), DIGEST, 1.0, DELTA)
        ledger.decide("r2", "", 0, DIGEST)
    return path


@pytest.mark.parametrize("statement", TAMPERING)
def test_triggers_refuse_tampering(filled_path: Path, statement: str) -> None:
    with open_database(filled_path) as db:
        before = list(db.iterdump())
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(statement)
        assert list(db.iterdump()) == before
        with without_triggers(db):
            db.execute(statement)  # it is the triggers that hold it, not a slip in the statement
        assert list(db.iterdump()) != before


def test_ledger_without_triggers_is_refused(filled_path: Path) -> None:
    with open_database(filled_path) as db:
        db.execute("DROP TRIGGER releases_delete")
    with refused(BudgetError):
        Ledger.open(filled_path)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM releases WHERE release = 'r1'",
        "DELETE FROM releases WHERE release = 'r2'",
        "DELETE FROM caps",
        'UPDATE releases SET cost = \'{"gaussian": "0"}\'',
        "UPDATE releases SET cost = '[1'",
        "UPDATE releases SET plan_digest = replace(plan_digest, 'a', 'x')",
        "UPDATE releases SET state = 'reserved'",
        "UPDATE releases SET released_at = 'x'",
    ],
)
def test_verify_detects_tampering_without_triggers(filled_path: Path, statement: str) -> None:
    with Ledger.open(filled_path) as ledger:
        ledger.verify()
    with open_database(filled_path) as db, without_triggers(db):
        db.execute(statement)
    with Ledger.open(filled_path) as ledger, refused(BudgetError):
        ledger.verify()


# A place or a file that will not do


@pytest.mark.parametrize(("part", "other"), [("", "people"), ("visits", "people"), ("visits", "")])
def test_chain_detects_changed_part(path: Path, part: str, other: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge("adult", "r1", gaussian(1), DIGEST)
        ledger.decide("r1", part, 0, DIGEST)
        ledger.verify()
    with open_database(path) as db, without_triggers(db):
        db.execute("UPDATE rounds SET part = ?", (other,))
    with Ledger.open(path) as ledger, refused(BudgetError):
        ledger.verify()


def assert_refused(kind: type[DpscaleError], act: Callable[[], object]) -> None:
    with refused(kind) as caught:
        act()
    assert caught.value.field == "privacy.ledger"
    assert caught.value.takes
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_new_ledger_is_private_to_its_owner(path: Path) -> None:
    mask = os.umask(0)
    try:
        with Ledger.open(path) as ledger:
            ledger.charge("adult", "r1", gaussian(1), DIGEST)
            modes = {name.name: stat.S_IMODE(name.stat().st_mode) for name in path.parent.iterdir()}
    finally:
        os.umask(mask)
    assert set(modes.values()) == {0o600}
    assert len(modes) == 3


def test_unusual_names_are_plain_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:x?mode=memory", "a b%20#?.sqlite"):
        with Ledger.open(name) as ledger:
            ledger.charge("adult", "r1", gaussian(1), DIGEST)
        assert (tmp_path / name).stat().st_size > 0
        with Ledger.open(name, create=False) as ledger:
            assert len(ledger.summary()["datasets"]["adult"]["releases"]) == 1


def test_missing_ledger_is_refused(path: Path) -> None:
    assert_refused(JobError, lambda: Ledger.open(path, create=False))
    assert not path.exists()
    assert_refused(JobError, lambda: Ledger.open(path.parent / "no" / "such"))


@pytest.mark.parametrize("name", ["x\0y", "\ud800", None, 5, b"ledger", ["ledger"]])
def test_invalid_ledger_path_is_refused(name: Any) -> None:
    assert_refused(JobError, lambda: Ledger.open(name))


def test_device_is_refused() -> None:
    assert_refused(JobError, lambda: Ledger.open("/dev/null"))


def test_directory_is_refused(tmp_path: Path) -> None:
    assert_refused(JobError, lambda: Ledger.open(tmp_path))


@pytest.mark.parametrize("content", [b"not a database, but long enough for a header of some hundred bytes " * 20, b"x"])
def test_file_of_other_format_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert_refused(JobError, lambda: Ledger.open(path))
    assert path.read_bytes() == content


def test_empty_file_is_refused(path: Path) -> None:
    path.touch()
    assert_refused(BudgetError, lambda: Ledger.open(path))


def test_leftover_wal_without_ledger_is_refused(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"x")
    assert_refused(BudgetError, lambda: Ledger.open(path))


def test_database_of_other_program_is_left_unchanged(path: Path) -> None:
    with open_database(path) as db:
        db.execute("CREATE TABLE mine (x)")
    content = path.read_bytes()
    assert_refused(JobError, lambda: Ledger.open(path))
    assert path.read_bytes() == content


def test_newer_schema_is_refused(filled_path: Path) -> None:
    with open_database(filled_path) as db:
        db.execute("INSERT INTO schema_version VALUES (?, 'later')", (ledgerschema.VERSION + 1,))
    assert_refused(BudgetError, lambda: Ledger.open(filled_path))


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_truncated_file_is_refused(filled_path: Path, keep: float) -> None:
    os.truncate(filled_path, int(filled_path.stat().st_size * keep))
    assert_refused(BudgetError, lambda: Ledger.open(filled_path))


def test_damaged_page_is_refused_on_open_or_verify(filled_path: Path) -> None:
    whole = filled_path.read_bytes()
    page = 4096
    for start in range(0, len(whole), page):
        filled_path.write_bytes(whole[:start] + bytes([0x5A]) * page + whole[start + page :])
        with pytest.raises(DpscaleError, match=r"damaged|not a SQLite|another"), Ledger.open(filled_path) as ledger:
            ledger.verify()
    filled_path.write_bytes(whole)
    with Ledger.open(filled_path) as ledger:
        ledger.verify()


def test_locked_ledger_is_reported(filled_path: Path) -> None:
    with open_database(filled_path) as other, Ledger.open(filled_path, timeout=0.05) as ledger:
        other.execute("BEGIN IMMEDIATE")
        assert_refused(TransientError, lambda: ledger.charge("adult", "r3", gaussian(0.1), DIGEST))
        other.execute("ROLLBACK")
        assert ledger.charge("adult", "r3", gaussian(0.1), DIGEST) == "reserved"


def charge_until_full(ledger: Ledger) -> tuple[int, TransientError]:
    """Charge until the disk refuses, and return the number of charges and the error."""
    for k in range(10000):
        try:
            ledger.charge("adult", f"{k:0200d}", gaussian(1), DIGEST)
        except TransientError as error:
            return k, error
    raise AssertionError("the disk never filled")


def test_full_database_loses_no_charge(ledger: Ledger, path: Path) -> None:
    (pages,) = ledger._store.db.execute("PRAGMA page_count").fetchone()
    ledger._store.db.execute(f"PRAGMA max_page_count = {pages + 1}")
    taken, error = charge_until_full(ledger)
    assert "full" in str(error)
    assert error.exit_code == 75
    assert len(release_rows(path)) == taken
    ledger.verify()
    ledger._store.db.execute("PRAGMA max_page_count = 100000")
    assert ledger.charge("adult", f"{taken:0200d}", gaussian(1), DIGEST) == "reserved"
    assert len(release_rows(path)) == taken + 1


def test_file_size_limit_loses_no_charge(path: Path) -> None:
    Ledger.open(path).close()

    def act() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        with Ledger.open(path) as ledger:
            taken, _ = charge_until_full(ledger)
        Path(f"{path}.taken").write_text(str(taken))

    assert run_in_child(act) == 0
    taken = int(Path(f"{path}.taken").read_text())
    assert taken > 3
    with Ledger.open(path) as ledger:
        ledger.verify()
        assert len(release_rows(path)) == taken
        ledger.charge("adult", f"{taken:0200d}", gaussian(1), DIGEST)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A directory that a user other than root can access."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def run_as_other_user(act: Callable[[], object]) -> DpscaleError | None:
    """Return the error of `act` for a user other than root, who is subject to permissions."""
    receive, send = os.pipe()

    def child() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            act()
            os.write(send, pickle.dumps(None))
        except DpscaleError as error:
            os.write(send, pickle.dumps(error))

    assert run_in_child(child) == 0
    os.close(send)
    with os.fdopen(receive, "rb") as stream:
        return pickle.load(stream)  # type: ignore[no-any-return]


def charge_at(path: Path, reserve: bool) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge("adult", "r2", gaussian(1), DIGEST, reserve=reserve)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o000, 0o777), (0o666, 0o555), (0o666, 0o000)])
def test_charge_of_unwritable_ledger_is_refused(public_folder: Path, file_mode: int, folder_mode: int) -> None:
    path = public_folder / "budget.sqlite"
    with Ledger.open(path) as ledger:
        ledger.charge("adult", "r1", gaussian(1), DIGEST)
    path.chmod(file_mode)
    public_folder.chmod(folder_mode)
    for reserve in (True, False):
        error = run_as_other_user(lambda r=reserve: charge_at(path, r))  # type: ignore[misc]
        assert isinstance(error, BudgetError | JobError)
        assert "permission" in error.remedy or "writable" in error.remedy


def test_unwritable_directory_is_refused(public_folder: Path) -> None:
    public_folder.chmod(0o555)
    assert isinstance(run_as_other_user(lambda: Ledger.open(public_folder / "new.sqlite")), JobError)
    public_folder.chmod(0o777)
    assert (
        run_as_other_user(lambda: Ledger.open(public_folder / "new.sqlite").close()) is None
    )  # so it was the permission


def test_ledger_made_read_only_while_open_is_refused(filled_path: Path) -> None:
    with Ledger.open(filled_path) as ledger:
        ledger._store.db.execute("PRAGMA query_only = ON")
        assert_refused(BudgetError, lambda: ledger.charge("adult", "r3", gaussian(0.1), DIGEST))
        ledger._store.db.execute("PRAGMA query_only = OFF")
        assert ledger.charge("adult", "r3", gaussian(0.1), DIGEST) == "reserved"
