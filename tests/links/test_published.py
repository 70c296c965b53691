"""The published link mechanism: sensitivities by brute force, laws of selections and noise, resumed runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing, nullcontext
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

import dpscale as dp
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.audit.evidence.check import check_bundle
from dpscale.cli.plan import overview_text
from dpscale.job import Job, job
from dpscale.measurement.journal import Journal, StoredDraws
from dpscale.privacy.conversion import mu_of_exponential
from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.privacy.selection import epsilon_below
from dpscale.privacy.streams import seeded_secret
from dpscale.relational import published
from dpscale.relational.features import Side
from dpscale.relational.published import Fit, Rounds, moved_entries
from dpscale.relational.rounding import Cross
from dpscale.runs.links import measuring
from dpscale.runs.links.link_data import ExactLinks
from dpscale.runs.links.measuring import LinkDraws, PublishedLoop
from dpscale.runs.links.planning import overview
from dpscale.runs.opening import open_run
from tests.audit.test_bundle import PASSED
from tests.links.small import make_job, run_digests, table_section, write_job
from tests.messages import refused

U_SIZES, V_SIZES = (2, 2), (2, 3)
PROFILES = list(product((0, 1), repeat=2))
MOVIES = [(0, 0), (1, 2), (1, 0)]


def user_entries(user: tuple[int, ...] | None, ends: tuple[int, ...], order: int) -> np.ndarray:
    """Return the marginal entries of one user's links; those of another user are constant."""
    rows = [(0, end) for end in ends] + [(1, 0), (1, 1)]
    users = np.array([user or (0, 0), (1, 0)], np.int32)
    return ExactLinks(np.array(rows, np.int64), users, np.array(MOVIES, np.int32)).entry_sums((U_SIZES, V_SIZES), order)


def marginal_changes(relation: str, most: int, order: int = 3) -> list[np.ndarray]:
    """Return the changes by every neighbour, marginal by marginal."""
    ends = [tuple(np.flatnonzero(bits)) for bits in product((0, 1), repeat=3) if sum(bits) <= most]
    all_ = [user_entries(user, own, order) for user, own in product(PROFILES, ends)]
    others = all_ if relation == REPLACE else [user_entries(None, (), order)]
    cross = Cross.of(Side.made(np.array(PROFILES), U_SIZES), Side.made(np.array(MOVIES), V_SIZES), order)
    return [(a - b)[cross.entries(k)] for a in all_ for b in others for k in range(len(cross.columns))]


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize(("most", "order"), [(1, 3), (2, 3), (3, 3), (2, 2), (2, 4)])
def test_no_neighbour_exceeds_marginal_sensitivity(relation: str, most: int, order: int) -> None:
    found, claimed = marginal_changes(relation, most, order), moved_entries(relation)
    assert max(int(np.abs(one).sum()) for one in found) == claimed * most
    assert max(int((one**2).sum()) for one in found) <= claimed * most**2


def test_planted_sensitivity_of_other_relation_is_detected() -> None:
    """Planted fault: a replaced row changes more than an added row."""
    assert max(int(np.abs(one).sum()) for one in marginal_changes(REPLACE, 2)) > moved_entries(ADD_REMOVE) * 2


class RecordingJournal(Journal):
    """Journal that records numbers and contents of decisions in a list."""

    def __init__(self, record: list[Any]) -> None:
        super().__init__("links.link", "release", lambda: None, lambda: nullcontext())  # type: ignore[arg-type]
        object.__setattr__(self, "decided", record)

    def decide(self, number: int, content: Mapping[str, Any]) -> None:
        self.decided.append((number, json.dumps(content)))  # type: ignore[attr-defined]


def make_loop(
    folder: Path, number: int, exact: np.ndarray, rounds: Rounds, amount: Fraction, record: list[Any]
) -> PublishedLoop:
    head = {"release": f"release {number}", "snapshot": "snapshot"}
    draws = LinkDraws(
        StoredDraws(folder / str(number), head), "link", RecordingJournal(record), lambda: seeded_secret(5)
    )
    return PublishedLoop(draws, rounds, amount, REPLACE, 3, lambda: exact, lambda records: {"records": records})


def make_fit() -> tuple[Fit, Cross, np.ndarray]:
    rng = np.random.default_rng(1)
    users, movies = (np.stack([rng.integers(0, 2, n), rng.integers(0, 2, n)], axis=1) for n in (30, 20))
    u, v = Side.made(users, (2, 2)), Side.made(movies, (2, 2))
    rows = np.argwhere(rng.random((30, 20)) < 0.1 + 0.4 * (users[:, :1] == movies[:, 0]))
    cross, exact = ExactLinks(rows, users.astype(np.int32), movies.astype(np.int32)).entries(((2, 2), (2, 2)))
    return Fit(u, v, float(len(rows)), False), cross, exact


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (2.0, False), (0.5, False)])
def test_selections_follow_exponential_mechanism(tmp_path: Path, factor: float, fits: bool) -> None:
    """They fit the law at the ε of the budget share, and not at twice or half of it."""
    _, cross, exact = make_fit()
    rounds, amount = Rounds(1, 1, 0.5), Fraction(2)
    estimated = exact.astype(float)
    for k in range(len(cross.columns)):
        estimated[cross.entries(k)][0] += 4.25 * k
    counts = np.zeros(len(cross.columns))
    for number in range(4000):
        one = make_loop(tmp_path, number, exact, rounds, amount, [])
        counts[one._drawn(cross, 0, estimated, range(len(counts)), 1)[0]] += 1
    scores = np.array([np.abs(exact - estimated)[cross.entries(k)].sum() for k in range(len(counts))])
    epsilon = factor * float(epsilon_below(amount / 2))
    assert mu_of_exponential(epsilon / factor) ** 2 == pytest.approx(1, rel=1e-6)
    law = np.exp(epsilon * (scores - scores.max()) / (2 * 2 * 3))
    p = chisquare(counts, law / law.sum() * counts.sum()).pvalue
    assert p > 1e-3 if fits else p < 1e-6


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (1.3, False), (0.7, False)])
def test_noise_has_variance_of_its_share(tmp_path: Path, factor: float, fits: bool) -> None:
    _, cross, exact = make_fit()
    rounds, amount, errors = Rounds(1, 2, 0.2), Fraction(3), []
    for number in range(60):
        one = make_loop(tmp_path, number, exact, rounds, amount, [])
        (one.draws.folder).mkdir()
        one._stored_path(0).write_text("[1, 2]")
        found = one._measured(cross, 0, [1, 2])
        errors += [(found - exact)[cross.entries(k)] for k in (1, 2)]
        assert not found[cross.entries(0)].any()
    variance = 2 * 3**2 / (float(amount) / 2 * 0.8) * factor**2
    statistic = (np.concatenate(errors) ** 2).sum() / variance
    tails = chi2.cdf(statistic, sum(map(len, errors))), chi2.sf(statistic, sum(map(len, errors)))
    assert min(tails) > 1e-3 if fits else min(tails) < 1e-9


@pytest.mark.parametrize("rounds", [Rounds(), Rounds(1, 1, 0.9), Rounds(7, 2, 0.01)])
def test_rounds_cost_at_most_their_share(rounds: Rounds) -> None:
    """The oracle is the cost of a selection's range of ε and of a marginal's noise."""
    amount = Fraction(7, 10)
    choice, noise = rounds.costs(amount)
    one = mu_of_exponential(float(epsilon_below(choice))) ** 2
    draw = measuring.gaussian_draw(moved_entries(REPLACE), noise, 6, "")
    assert draw.lattice_variance >= moved_entries(REPLACE) * 6**2 / float(noise)
    assert rounds.rounds * rounds.each * (one + float(draw.cost)) <= float(amount) * (1 + 1e-9)


def test_rounds_end_and_are_recorded_first(tmp_path: Path) -> None:
    """Four marginals, three a round: two of the five rounds are used."""
    fit, cross, exact = make_fit()
    record: list[Any] = []
    one = make_loop(tmp_path, 0, exact, Rounds(5, 3), Fraction(100_000), record)
    b = one.run_rounds(fit)
    assert [n - 10 for n, _ in record] == [0, 1, 2, 3]  # what a choice is made on, and the choice, of two rounds
    assert sorted(k for n in (0, 1) for k in json.loads((tmp_path / f"0/round-{n:02d}.json").read_text())) == [
        *range(4)
    ]
    assert len(list(tmp_path.glob("0/*.parquet"))) == 2
    again = make_loop(tmp_path, 0, None, Rounds(5, 3), Fraction(100_000), record)  # type: ignore[arg-type]
    assert (again.run_rounds(fit) == b).all()
    assert len(record) == 4
    assert (
        np.abs(cross.marginals(b * fit.cap) - exact).sum()
        < 0.35 * np.abs(cross.marginals(fit.begin() * fit.cap) - exact).sum()
    )


def published_links(**more: Any) -> list[dict[str, Any]]:
    return [link | {"mechanism": "published", "rounds": 3, "marginals": 2, **more} for link in make_job()["link"]]


def test_run_has_valid_keys_and_bounded_degrees(tmp_path: Path) -> None:
    release = dp.run(write_job(tmp_path, link=published_links()), tmp_path / "run")
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    persons, orders, ratings = found["persons"], found["orders"], found["ratings"]
    assert orders.person.isin(persons.id).all()
    assert orders.person.value_counts().max() <= 6
    assert not ratings.duplicated().any()
    assert ratings.id.isin(persons.id).all()
    assert ratings.code.isin(found["products"].code).all()
    assert ratings.id.value_counts().max() <= 5
    assert persons.country.isin(found["countries"].country).all()
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        assert list(db.execute("SELECT dataset, state FROM releases")) == [("shop", "released")]
    rounds = list((tmp_path / "run").glob("links/*/round-*.json"))
    assert len(rounds) == 6  # four marginals a link


def test_run_resumes_after_interruption_in_round(tmp_path: Path) -> None:
    """The run is interrupted after every kind of file of the loop, once each."""
    path = write_job(tmp_path, link=published_links(), privacy={"privacy_cost": 8.0, "dataset": "shop"})
    dp.run(path, tmp_path / "undisturbed")
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    original, calls = measuring.draw_index, []

    def draw_or_stop(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) in (1, 4, 9):
            raise KeyboardInterrupt
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "draw_index", draw_or_stop)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                dp.run(path, tmp_path / "run")
        dp.run(path, tmp_path / "run")
    assert run_digests(tmp_path / "run") == run_digests(tmp_path / "undisturbed")


def stop_before_noise(path: Path, run: Path) -> None:
    """Run a job and stop it after the first selection, before noise is drawn."""
    original = StoredDraws.store

    def measure(self: StoredDraws, number: int, *more: Any) -> Any:
        if number >= LinkDraws.number("round-00"):
            raise KeyboardInterrupt
        return original(self, number, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredDraws, "store", measure)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, run)


def test_other_selection_under_same_charge_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path, link=published_links())
    stop_before_noise(path, tmp_path / "run")
    stored = next((tmp_path / "run").glob("links/*/round-00.json"))
    stored.write_text(json.dumps([k + 1 for k in json.loads(stored.read_text())]))
    with refused(dp.BudgetError):
        dp.run(path, tmp_path / "run")


def test_selection_is_not_repeated_on_other_rows(tmp_path: Path) -> None:
    """The copy lacks its selection and has other synthetic rows: the estimates would differ with the same random
    stream.
    """
    path = write_job(tmp_path, {"engine": {"scheduler": "synchronous"}}, link=published_links())
    stop_before_noise(path, tmp_path / "run")
    next((tmp_path / "run").glob("links/*/round-00.json")).unlink()
    record = tmp_path / "run/tables/persons/synthetic/_rows.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"rows": 500}))
    with refused(dp.BudgetError):
        dp.run(path, tmp_path / "run")
    assert not list((tmp_path / "run").glob("links/*/round-00.json"))


def test_open_number_of_rounds_follows_from_released_values(tmp_path: Path) -> None:
    """It is stored for readers, and the bundle of evidence has as many rounds."""
    links = [{key: value for key, value in link.items() if key != "rounds"} for link in published_links(marginals=1)]
    dp.run(write_job(tmp_path, link=links), tmp_path / "run")
    for link in ("orders", "ratings", "homes"):
        folder = tmp_path / f"run/links/{link}"
        number = json.loads((folder / "rounds.json").read_text())
        assert 1 <= number == len(list(folder.glob("round-*.json"))) <= 4
    write_bundle(open_run(tmp_path / "run"), PASSED)
    assert check_bundle(tmp_path / "run/evidence")["sound"]


def test_another_number_of_rounds_is_refused(tmp_path: Path) -> None:
    links = [{key: value for key, value in link.items() if key != "rounds"} for link in published_links()]
    path = write_job(tmp_path, link=links)
    stop_before_noise(path, tmp_path / "run")
    stored = next((tmp_path / "run").glob("links/*/rounds.json"))
    stored.write_text(str(json.loads(stored.read_text()) + 1))
    with refused(dp.JobError):
        dp.run(path, tmp_path / "run")


def test_protects_both_sides(tmp_path: Path) -> None:
    link = {"kind": "many-to-many", "name": "ratings", "parent": "persons", "child": "products", "child_key": "code",
            "via": "data/ratings/*.parquet", "max_degree": 60, "protects": "both",
            "mechanism": "published"}  # fmt: skip
    tables = {"persons": table_section("persons", "id"), "products": table_section("products", "code")}
    path = write_job(
        tmp_path, tables=tables, link=[link], budget={"method": "equal", "tables": {"products": {"share": 0.2}}}
    )
    release = dp.run(path, tmp_path / "run")
    assert release.synthetic()["ratings"].compute().groupby("id").size().max() <= 60


@pytest.mark.parametrize(("cost", "loses"), [(0.5, True), (1e6, False)])
def test_plan_and_report_warn_of_a_loop_that_is_expected_to_lose(tmp_path: Path, cost: float, loses: bool) -> None:
    privacy = {"privacy_cost": cost, "dataset": "shop", "allow_weak_privacy": True}
    path = write_job(tmp_path, link=published_links(), privacy=privacy)
    planned = "\n".join(overview_text(overview(Job.read(path))))
    assert ("warning: the published loop is expected to be worse than random links" in planned) == loses
    dp.run(path, tmp_path / "run")
    report = (tmp_path / "run" / "report.html").read_text()
    assert ("the published loop is expected to be worse than random links" in report) == loses


@pytest.mark.parametrize("key", ["rounds", "marginals", "alpha", "degree", "optimised", "slices"])
def test_options_of_rounds_need_published_mechanism(tmp_path: Path, key: str) -> None:
    with refused(dp.JobError):
        Job.read(write_job(tmp_path, link=[make_job()["link"][1] | {key: 0.5 if key == "alpha" else 3}]))


@pytest.mark.parametrize(("link", "more"), [
    (1, {"degree": 1}),
    (1, {"degree": 5}),
    (1, {"optimised": 0}),
    (1, {"slices": 2.5}),
    (0, {"slices": 2}),
])  # fmt: skip
def test_wrong_options_of_rounds_are_refused(tmp_path: Path, link: int, more: dict[str, Any]) -> None:
    with refused(dp.JobError):
        Job.read(write_job(tmp_path, link=[published_links(**more)[link]]))


def test_marginals_of_too_many_cells_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "MOST_CELLS", 50)
    with refused(dp.JobError):
        Job.read(write_job(tmp_path, link=[published_links()[1]]))


@pytest.mark.parametrize("degree", [2, 4])
def test_run_with_slices_measures_marginals_of_the_degree(
    tmp_path: Path, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "SLICE", 50)
    orders, ratings, homes = published_links(degree=degree, optimised=2)
    path = write_job(tmp_path, link=[orders, ratings | {"slices": 2}, homes])
    release = dp.run(path, tmp_path / "run")
    assert not release.synthetic()["ratings"].compute().duplicated().any()
    files = sorted((tmp_path / "run/links/ratings").glob("round-*.json"))
    chosen = [k for file in files for k in json.loads(file.read_text())]
    assert sorted(chosen) == list(range({2: 4, 4: 1}[degree]))  # 2 × 2 attributes
    write_bundle(open_run(tmp_path / "run"), PASSED)
    assert check_bundle(tmp_path / "run/evidence")["sound"]
