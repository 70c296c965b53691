"""Sessions: what is answered costs nothing, what is missing costs its residuals, and the cap bounds the whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.api import session as sessions
from dpscale.privacy.conversion import gdp_mu
from tests.messages import refused

CAP = (2.0, 1e-9)
ROWS = 4000
DOMAIN = """[attributes.region]
kind = "categories"
values = ["N", "S", "W"]
[attributes.sex]
kind = "categories"
values = ["f", "m"]
[attributes.age]
kind = "integer"
low = 0
high = 19
[numbers.fee]
low = 0
high = 100
"""
BY_REGION = "-- name: regions\nSELECT region, COUNT(*) AS n, AVG(fee) AS fee FROM t GROUP BY region"
BY_BOTH = "-- name: both\nSELECT region, sex, COUNT(*) AS n FROM t WHERE age >= 5 GROUP BY CUBE (region, sex)"
OR = "-- name: either\nSELECT region, COUNT(*) AS n FROM t WHERE sex = 'm' OR age < 4 GROUP BY region"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DPSCALE_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.toml").write_text(DOMAIN)


@pytest.fixture
def rows() -> pd.DataFrame:
    source = np.random.default_rng(3)
    return pd.DataFrame({
        "region": source.choice(["N", "S", "W"], ROWS),
        "sex": source.choice(["f", "m"], ROWS),
        "age": source.integers(0, 20, ROWS),
        "fee": source.uniform(0, 100, ROWS),
    })  # fmt: skip


def opened(data: object, cap: tuple[float, float] | None = CAP, **more: object) -> dp.Session:
    return dp.Session(data, "d.toml", cap=cap, dataset="visits", progress=None, **more)  # type: ignore[arg-type]


def squared(epsilon: float) -> float:
    return float(gdp_mu(epsilon, CAP[1]) ** 2)


def spent(session: dp.Session) -> float:
    return float(session._refresh()["spent"]["squared_mu"])


def within(found: pd.DataFrame, name: str, truth: np.ndarray, widths: float = 6.0) -> bool:
    """Return whether estimates are near the truth, with a chance below 10^-8 to fail for a row."""
    return bool((np.abs(found[name] - truth) <= widths * found[f"{name}_std_error"]).all())


def test_answers_are_those_of_the_data_and_repeated_statements_cost_nothing(rows: pd.DataFrame) -> None:
    session = opened(rows)
    first = session.run(BY_REGION, 0.5)["regions"]
    assert spent(session) == pytest.approx(squared(0.5), rel=1e-6)
    assert within(first, "n", rows.groupby("region").size().to_numpy())
    assert within(first, "fee", rows.groupby("region")["fee"].mean().to_numpy())

    again = session.run(BY_REGION, 0.5)["regions"]
    coarser = session.run("SELECT COUNT(*) AS n FROM t", 0.2)["query-1"]
    assert spent(session) == pytest.approx(squared(0.5), rel=1e-6)
    pd.testing.assert_frame_equal(first, again)
    assert coarser["n"][0] == pytest.approx(first["n"].sum())
    assert session.plan(BY_REGION, 0.5).squared_mu == 0
    assert str(session.plan(BY_REGION, 0.3)) == "answered by earlier runs: costs nothing"


def test_other_statements_cost_what_is_missing(rows: pd.DataFrame) -> None:
    """The charge is that of the plan, and the errors are those of a release of the whole budget alone."""
    session = opened(rows)
    session.run(BY_REGION, 0.5)
    planned = session.plan(BY_BOTH, 0.5)
    assert 0 < planned.squared_mu < squared(0.5)
    before = spent(session)
    found = session.run(BY_BOTH, 0.5)["both"]
    assert spent(session) - before == pytest.approx(planned.squared_mu, rel=1e-6)
    assert planned.epsilon == pytest.approx(dp.privacy.epsilon_of_mu(planned.squared_mu**0.5, CAP[1]))

    alone = opened(rows, cap=CAP, folder="alone").run(BY_BOTH, 0.5)["both"]
    assert (found["n_std_error"] <= alone["n_std_error"] * (1 + 1e-3)).all()
    cells = rows[rows["age"] >= 5].groupby(["region", "sex"]).size()
    inner = found.dropna(subset=["region", "sex"])
    assert within(inner, "n", cells.loc[list(zip(inner["region"], inner["sex"], strict=True))].to_numpy())


def test_missing_budget_is_the_sum_over_residuals(rows: pd.DataFrame) -> None:
    """Oracle: shares of the plans of both statements by attribute set, in units of squared mu."""
    from dpscale.api.planning import plan_sql

    session, text = opened(rows), BY_BOTH
    session.run(BY_REGION, 0.5)

    def amounts(statement: str, epsilon: float) -> dict[tuple[str, ...], float]:
        plan = plan_sql(statement, "d.toml", epsilon=epsilon, delta=CAP[1], mechanism="residual-planner")
        blocks = plan.measurements.plan.blocks  # type: ignore[attr-defined]
        return {names: squared(epsilon) * share for names, share in zip(blocks.sets, blocks.share, strict=True)}

    earlier, wanted = amounts(BY_REGION, 0.5), amounts(text, 0.7)
    missing = sum(max(0.0, amount - earlier.get(names, 0.0)) for names, amount in wanted.items())
    assert session.plan(text, 0.7).squared_mu == pytest.approx(missing, rel=1e-6)


def test_answers_never_contradict(rows: pd.DataFrame) -> None:
    session = opened(rows)
    for text in (BY_REGION, OR, BY_BOTH):
        session.run(text, 0.4)
    now = {name: one for text in (BY_REGION, OR, BY_BOTH) for name, one in session.run(text, 0.1).items()}
    both = now["both"]
    by_region = both[both["sex"].isna() & both["region"].notna()].set_index("region")["n"]
    cells = both[both["sex"].notna() & both["region"].notna()].groupby("region")["n"].sum()
    pd.testing.assert_series_equal(by_region.sort_index(), cells.sort_index(), check_exact=False)
    split = session.run("SELECT region, COUNT(*) AS n FROM t GROUP BY region", 0.1)["query-1"].set_index("region")["n"]
    assert split.to_numpy() == pytest.approx(now["regions"].set_index("region")["n"].to_numpy())
    assert within(
        now["either"], "n", rows[(rows["sex"] == "m") | (rows["age"] < 4)].groupby("region").size().to_numpy()
    )


def ask_adaptively(session: dp.Session, most: int = 12) -> int:
    """Ask statements whose budget and attributes follow from earlier answers; return how many the cap admitted."""
    admitted, epsilon = 0, 0.6
    for number in range(most):
        names = ["region", "sex", "age"][: 1 + number % 3]
        text = f"SELECT {', '.join(names)}, COUNT(*) AS n FROM t GROUP BY {', '.join(names)}"
        try:
            found = session.run(text, epsilon)["query-1"]
        except dp.BudgetError:
            epsilon /= 2
            continue
        admitted += 1
        epsilon = min(1.2, epsilon * (1.3 if found["n"].max() > ROWS / 10 else 1.1))
    return admitted


def test_cap_bounds_adaptive_budgets(rows: pd.DataFrame) -> None:
    session = opened(rows)
    assert ask_adaptively(session) >= 3
    assert spent(session) <= squared(CAP[0])
    assert session.spent["epsilon"] <= CAP[0]
    before, number = spent(session), session._count
    with refused(dp.BudgetError):
        session.run("SELECT region, sex, age, COUNT(*) AS n FROM t GROUP BY region, sex, age", 2.0)
    assert (spent(session), session._count) == (before, number)


def test_planted_overspend_is_refused(rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the session believes that a run costs a third of what it asks for; the ledger charges its draws."""
    honest = sessions.missing_cost
    session = opened(rows)
    session.run(BY_REGION, 1.9)
    monkeypatch.setattr(sessions, "missing_cost", lambda planned, engine: 3 * honest(planned, engine))
    with pytest.raises(dp.BudgetError):
        session.run(BY_BOTH, 1.0)
    assert spent(session) == pytest.approx(squared(1.9), rel=1e-6)


def test_session_goes_on_in_another_process_and_with_another_analyst(rows: pd.DataFrame) -> None:
    with dp.Ledger.open("budget.sqlite") as ledger:
        ledger.set_cap("visits", *CAP)
        ledger.set_cap("visits", 1.5, 1e-9, analyst="ana")
        ledger.set_cap("visits", 0.4, 1e-9, analyst="ben")
    ana = opened(rows, (1.5, 1e-9), ledger="budget.sqlite", analyst="ana")
    ana.run(BY_REGION, 0.5)
    ben = opened(rows, None, ledger="budget.sqlite", analyst="ben")
    ben.run(BY_REGION, 0.5)
    assert ben.spent["epsilon"] == 0, "the answers of ana are known"
    with refused(dp.BudgetError):
        ben.run(BY_BOTH, 1.0)
    ana.run(BY_BOTH, 1.0)
    assert "for ana" in repr(ana)
    assert opened(rows, None, ledger="budget.sqlite", analyst="ana").spent == ana.spent


KILLED = """
import os, sys, pandas as pd, dpscale as dp
def progress(label, done, total):
    if label == sys.argv[1]:
        os._exit(9)
session = dp.Session("rows.parquet", "d.toml", cap=(2.0, 1e-9), dataset="visits", progress=progress)
session.run(sys.argv[2], 0.5)
"""


@pytest.mark.parametrize(("label", "charges"), [("count", 1), ("measure-marginals", 2)])
def test_killed_run_is_finished_or_forgotten(rows: pd.DataFrame, label: str, charges: int) -> None:
    rows.to_parquet("rows.parquet")
    session = opened("rows.parquet")
    session.run(BY_REGION, 0.5)
    killed = subprocess.run([sys.executable, "-c", KILLED, label, BY_BOTH], env={**os.environ}, capture_output=True)
    assert killed.returncode == 9, killed.stderr
    assert len(session._refresh()["releases"]) == charges
    found = session.run(BY_BOTH, 0.5)["both"]
    assert len(session._refresh()["releases"]) == 2
    assert within(found[found["sex"].isna() & found["region"].isna()], "n", np.array([(rows["age"] >= 5).sum()]))


def test_changed_records_are_refused(rows: pd.DataFrame) -> None:
    session = opened(rows)
    session.run(BY_REGION, 0.5)
    other = rows.assign(region=rows["region"].to_numpy()[::-1])
    with refused(dp.DataError):
        opened(other).run(BY_BOTH, 0.5)
    assert len(session._refresh()["releases"]) == 1


def test_changed_files_are_refused_also_for_free_answers(rows: pd.DataFrame) -> None:
    rows.to_parquet("rows.parquet")
    session = opened("rows.parquet")
    session.run(BY_REGION, 0.5)
    rows.head(100).to_parquet("rows.parquet")
    with pytest.raises(dp.DataError):
        session.run(BY_REGION, 0.5)


@pytest.mark.parametrize(
    "cap",
    [
        None,
        3,
        (3, 0),
    ],
)
def test_session_needs_a_cap(rows: pd.DataFrame, cap: object) -> None:
    dp.Ledger.open("budget.sqlite").close()
    with refused(dp.JobError):
        opened(rows, cap, ledger="budget.sqlite")  # type: ignore[arg-type]


def test_cap_of_the_ledger_stays(rows: pd.DataFrame) -> None:
    opened(rows)
    assert opened(rows, None).remaining == pytest.approx(2, rel=1e-4)
    with refused(dp.JobError):
        opened(rows, (3, 1e-9))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT region, VAR_SAMP(fee) AS v FROM t GROUP BY region",
        "SELECT COUNT(DISTINCT region) AS n FROM t",
        "SELECT nobody FROM t",
    ],
)
def test_refused_statements_cost_nothing(rows: pd.DataFrame, text: str) -> None:
    session = opened(rows)
    session.run(BY_REGION, 0.5)
    for ask in (session.plan, session.run):
        with refused(dp.JobError):
            ask(text, 0.5)
    assert len(session._refresh()["releases"]) == 1


def test_release_has_the_values_of_all_runs(rows: pd.DataFrame) -> None:
    session = opened(rows)
    with refused(dp.JobError):
        _ = session.release
    session.run(BY_REGION, 0.5)
    session.run(BY_BOTH, 0.5)
    refined = session.release.manifest["refines"]["releases"]
    assert len(refined) == 1
    table = session.release.table("region")
    free = session.run("SELECT region, COUNT(*) AS n FROM t GROUP BY region", 0.1)["query-1"]
    assert table["estimate"].to_numpy() == pytest.approx(free["n"].to_numpy())


def test_session_on_a_database_notices_changes(rows: pd.DataFrame) -> None:
    import duckdb

    with duckdb.connect("rows.duckdb") as db:
        db.register("frame", rows)
        db.execute("CREATE TABLE visits AS SELECT * FROM frame")
    session = opened("duckdb:///rows.duckdb?table=visits")
    session.run(BY_REGION, 0.5)
    found = session.run(BY_BOTH, 0.5)["both"]
    assert within(found[found["sex"].isna() & found["region"].isna()], "n", np.array([(rows["age"] >= 5).sum()]))
    with duckdb.connect("rows.duckdb") as db:
        db.execute("UPDATE visits SET age = 3 WHERE rowid = 7")
    with refused(dp.DataError):
        session.run(BY_REGION, 0.5)
    with pytest.raises(dp.DataError):
        session.run(OR, 0.5)
    assert len(session._refresh()["releases"]) == 2


def test_ledger_and_folder_do_not_depend_on_the_current_folder(rows: pd.DataFrame, tmp_path: Path) -> None:
    session = opened(rows, ledger="budget.sqlite", folder="runs")
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    session.run(BY_REGION, 0.5)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert spent(session) == pytest.approx(squared(0.5), rel=1e-6)
    with pytest.raises(dp.BudgetError):
        session.run(BY_BOTH, 5)


def test_session_without_its_ledger_is_refused(rows: pd.DataFrame) -> None:
    session = opened(rows, ledger="budget.sqlite")
    session.run(BY_REGION, 0.5)
    Path("budget.sqlite").unlink()
    with pytest.raises(dp.JobError):
        session.run(BY_BOTH, 5)
    dp.Ledger.open("budget.sqlite").close()
    with refused(dp.JobError):
        session.run(BY_BOTH, 5)


def test_analysts_need_caps_of_the_owner(rows: pd.DataFrame) -> None:
    """A session of an analyst sets no cap, and is none without a cap of the dataset."""
    dp.Ledger.open("budget.sqlite").close()
    with refused(dp.JobError):
        opened(rows, (1, 1e-9), ledger="budget.sqlite", analyst="ana")
    with dp.Ledger.open("budget.sqlite") as ledger:
        ledger.set_cap("visits", 1.0, 1e-9)
    with refused(dp.JobError):
        opened(rows, (1, 1e-9), ledger="budget.sqlite", analyst="ana")
    with dp.Ledger.open("budget.sqlite") as ledger:
        ledger.set_cap("visits", 3.0, 1e-9, analyst="ana")
    session = opened(rows, None, ledger="budget.sqlite", analyst="ana")
    assert session.remaining == pytest.approx(1, rel=1e-4), "the cap of the dataset is the smaller one"


@pytest.mark.parametrize("column", ["region", "age"])
def test_other_frames_are_refused_also_for_free_answers(rows: pd.DataFrame, column: str) -> None:
    """Also if the first runs did not read the column that differs."""
    opened(rows).run(BY_REGION, 0.5)
    other = opened(rows.assign(**{column: rows[column].to_numpy()[0]}))
    for text in (BY_REGION, BY_BOTH):
        with pytest.raises(dp.DataError):
            other.run(text, 0.5)
    assert opened(rows).run(BY_REGION, 0.5)["regions"]["n"].sum() > 0


def test_missing_run_is_refused(rows: pd.DataFrame) -> None:
    session = opened(rows, folder="runs")
    for text in (BY_REGION, BY_BOTH):
        session.run(text, 0.5)
    shutil.rmtree("runs/release-1")
    with refused(dp.JobError):
        session.run("SELECT age, COUNT(*) AS n FROM t GROUP BY age", 0.5)
    with refused(dp.BudgetError):
        opened(rows, folder="others").run(BY_REGION, 0.5)
    opened(rows, folder="others", fresh=True).run(BY_REGION, 0.5)
    assert len(session._refresh()["releases"]) == 3


def test_changed_cap_is_read_again(rows: pd.DataFrame) -> None:
    session = opened(rows, ledger="budget.sqlite")
    session.run(BY_REGION, 0.5)
    with dp.Ledger.open("budget.sqlite") as ledger:
        ledger.set_cap("visits", 1.0, 1e-6)
    assert session.spent == {
        "epsilon": pytest.approx(dp.privacy.epsilon_of_mu(spent(session) ** 0.5, 1e-6)),
        "delta": 1e-6,
    }
    assert "at delta 10⁻⁶" in repr(session)


WAITS = """
import sys, pandas as pd, dpscale as dp
session = dp.Session("rows.parquet", "d.toml", cap=(2.0, 1e-9), dataset="visits", progress=None)
session.run(sys.argv[1], 0.4)
"""


def test_two_processes_take_turns(rows: pd.DataFrame) -> None:
    rows.to_parquet("rows.parquet")
    session = opened("rows.parquet")
    texts = [BY_REGION, BY_BOTH, OR]
    started = [subprocess.Popen([sys.executable, "-c", WAITS, text], env={**os.environ}) for text in texts]
    assert [one.wait() for one in started] == [0, 0, 0]
    assert session._count == len(session._refresh()["releases"])
    for text in texts:
        assert session.plan(text, 0.4).squared_mu == 0


def test_cells_found_by_the_first_search_are_those_of_later_statements(rows: pd.DataFrame) -> None:
    Path("d.toml").write_text(DOMAIN.replace('kind = "categories"\nvalues = ["N", "S", "W"]', 'kind = "discover"'))
    session = opened(rows, (40.0, 1e-9))
    session.run("SELECT sex, COUNT(*) AS n FROM t GROUP BY sex", 4.0)
    with refused(dp.JobError):
        opened(rows, (40.0, 1e-9), folder="new").run("SELECT COUNT(*) AS n FROM t WHERE region = 'N'", 4.0)

    statements = {  # statement: the same counts
        "SELECT region, COUNT(*) AS n FROM t GROUP BY region": rows.region.value_counts().sort_index(),
        "SELECT COUNT(*) AS n FROM t WHERE region = 'N' AND sex = 'm'": [
            ((rows.region == "N") & (rows.sex == "m")).sum()
        ],
        "SELECT COUNT(*) AS n FROM t WHERE region LIKE '%S%'": [(rows.region == "S").sum()],
    }
    for statement, truth in statements.items():
        assert session.plan(statement, 4.0).epsilon <= 4.0
        answers = session.run(statement, 4.0)["query-1"]
        assert within(answers.iloc[: len(truth)], "n", np.asarray(truth))
    before = spent(session)
    session.run(next(iter(statements)), 4.0)
    assert spent(session) == before
    assert len(list(session._folder.glob("release-*/domain/searches.json"))) == 1
