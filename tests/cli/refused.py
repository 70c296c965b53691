"""Inputs that are refused, for `test_sentences`: changes of three small jobs, commands and calls from Python."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

import dpscale as dp

REMOVED = object()
DOMAIN = {
    "attributes": {
        "age": {"kind": "bins", "edges": [0, 20, 40, 60, 100]},
        "sex": {"kind": "categories", "values": ["F", "M"]},
        "day": {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-12"},
        "place": {"kind": "hierarchy", "file": "places.csv", "levels": ["region"]},
    },
    "numbers": {"fare": {"low": 0, "high": 100}},
}
PLACES = "region,place\nwest,Bonn\nwest,Koeln\nsouth,Ulm\n"
ROWS = (
    "person,age,sex,day,place,fare\np1,33,F,2024-02-03,Bonn,7\np2,51,M,2024-07-30,Ulm,20\np1,8,F,2024-12-24,Koeln,0\n"
)
PRIVACY = {"epsilon": 1.0, "delta": 1e-9, "ledger": "ledger.sqlite", "dataset": "people"}
TABLE = {
    "data": {"path": "x.csv", "domain": "d.toml"},
    "privacy": PRIVACY,
    "workload": [{"family": "marginal", "attributes": [["age", "sex"]]}],
    "engine": {"scheduler": "synchronous"},
}
GROWING = TABLE | {"data": TABLE["data"] | {"period": "day"}, "time": {"horizon": 12}}
TABLES = {
    "tables": {
        "people": {"path": "people.csv", "domain": "people.toml", "key": "id"},
        "visits": {"path": "visits.csv", "domain": "visits.toml"},
    },
    "link": [{"kind": "one-to-many", "parent": "people", "child": "visits", "child_key": "person", "max_degree": 3}],
    "workload": [{"family": "marginal", "attributes": [["people.sex", "visits.kind"]]}],
    "privacy": PRIVACY,
    "engine": {"scheduler": "synchronous"},
}
PEOPLE = {"attributes": {"sex": {"kind": "categories", "values": ["F", "M"]}}}
VISITS = {"attributes": {"kind": {"kind": "categories", "values": ["in", "out"]}}}
FORMATS = {"formats": {"person": {"pattern": "[A-Z]{9}"}}}
FILES = {
    "x.csv": ROWS,
    "places.csv": PLACES,
    "people.csv": "id,sex\np1,F\np2,M\n",
    "visits.csv": "person,kind\np1,in\np1,out\np2,in\n",
    "people.toml": tomli_w.dumps(PEOPLE),
    "visits.toml": tomli_w.dumps(VISITS),
}
SELECTED = ("COUNT(*)", "SUM(fare)")
JOBS = {"table": TABLE, "growing": GROWING, "tables": TABLES}


def changed(content: Any, path: str, value: Any) -> Any:
    """Return a copy of nested tables and lists with another value at a dotted path."""
    made = copy.deepcopy(content)
    *above, last = path.split(".")
    place = made
    for name in above:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    if value is REMOVED:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return made


def write_case(folder: Path, base: str, changes: dict[str, Any]) -> Path:
    """Write a job with changes, its domain files and its data, and return the path of the job.

    A path that begins with `domain` concerns the domain file of the table, one that begins with `file` a file.
    """
    job, domain, files = JOBS[base], DOMAIN, dict(FILES)
    for path, value in changes.items():
        first, _, rest = path.partition(":")
        if first == "domain":
            domain = changed(domain, rest, value)
        elif first == "file":
            files[rest] = value
        else:
            job = changed(job, path, value)
    for name, content in {**files, "d.toml": tomli_w.dumps(domain)}.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


def age(**keys: Any) -> dict[str, Any]:
    return {"domain:attributes.age": keys}


def asked(**keys: Any) -> dict[str, Any]:
    return {"workload.0": {"family": "marginal", "attributes": [["age"]]} | keys}


def predicates(*conditions: str) -> dict[str, Any]:
    return {"workload": [{"family": "predicates", "conditions": list(conditions)}]}


def in_database(address: str) -> dict[str, Any]:
    """Return the changes of a job whose table is in a database."""
    return {"data.path": REMOVED, "data.database": address, "data.table": "people"}


CASES: list[tuple[str, str, dict[str, Any]]] = [  # name, job, changes
    # job
    ("unknown key", "table", {"data.pth": "x"}),
    ("missing domain", "table", {"data.domain": REMOVED}),
    ("absent file", "table", {"data.path": "y.csv"}),
    ("password in an address", "table", in_database("postgresql://me:secret@host/shop")),
    ("unknown database", "table", in_database("mysql://host/shop")),
    ("absent variable", "table", in_database("env:NO_SUCH_DATABASE")),
    ("absent database file", "table", in_database("sqlite:///none.sqlite")),
    ("absent domain file", "table", {"data.domain": "e.toml"}),
    ("key of another section", "growing", {"data.max_periods_per_unit": 2}),
    ("key of two other sections", "table", {"privacy.seed": 3}),
    ("unknown section", "table", {"mechansm": {"name": "hdmm"}}),
    ("unknown mechanism", "table", {"mechanism": {"name": "hdm"}}),
    ("unknown option", "table", {"mechanism": {"name": "hdmm", "wy": "union"}}),
    ("option out of range", "table", {"mechanism": {"name": "aim-grem", "degree": 9}}),
    ("unknown reconstruction", "table", {"reconstruct": {"method": "leastsquares"}}),
    ("unreadable memory", "table", {"engine.memory": "4 GB of"}),
    ("unknown scheduler", "table", {"engine.scheduler": "thread"}),
    ("seed as a text", "table", {"engine.seed": "x"}),
    ("negative rows", "table", {"synthesize": {"rows": -5}}),
    ("unknown row format", "table", {"synthesize": {"format": "xlsx"}}),
    ("level above 1", "table", {"output": {"level": 95}}),
    # privacy
    ("delta of zero", "table", {"privacy.delta": 0.0}),
    ("delta above 1", "table", {"privacy.delta": 1.5}),
    ("negative epsilon", "table", {"privacy.epsilon": -1.0}),
    ("epsilon as a text", "table", {"privacy.epsilon": "0.1"}),
    ("weak privacy", "table", {"privacy.epsilon": 30.0}),
    ("two budgets", "table", {"privacy.rho": 0.1}),
    ("no budget", "table", {"privacy.epsilon": REMOVED}),
    ("unit without bound", "table", {"data.privacy_unit": "person"}),
    ("unit that no column has", "table", {"data.privacy_unit": "persn", "data.max_rows_per_unit": 2}),
    ("bound of zero", "table", {"data.privacy_unit": "person", "data.max_rows_per_unit": 0}),
    ("delta that is too large for the rows", "table", {"privacy.delta": 0.0009, "privacy.public_rows": 10000}),
    # ledger
    ("ledger that is a table", "table", {"privacy.ledger": "x.csv"}),
    ("ledger in an absent folder", "table", {"privacy.ledger": "no/such/l.sqlite"}),
    ("ledger with a password", "table", {"privacy.ledger": "postgresql://me:secret@db/budgets"}),
    ("empty dataset", "table", {"privacy.dataset": ""}),
    # workload
    ("unknown family", "table", asked(family="marginl")),
    ("degree as a text", "table", {"workload.0": {"family": "marginal", "degree": "1"}}),
    ("degree beyond the domain", "table", {"workload.0": {"family": "marginal", "degree": 9}}),
    ("set that is no list", "table", asked(attributes=["age", "sex"])),
    ("unknown attribute", "table", asked(attributes=[["agee"]])),
    ("attribute twice", "table", asked(attributes=[["age", "age"]])),
    ("negative weight", "table", asked(weight=-1.0)),
    ("no query", "table", asked(weight=0.0)),
    ("degree and sets missing", "table", {"workload.0": {"family": "marginal"}}),
    # domain
    ("unknown kind", "table", age(kind="intger", low=0, high=1)),
    ("missing end", "table", age(kind="integer", low=0)),
    ("ends in reverse", "table", age(kind="integer", low=5, high=1)),
    ("edges that decrease", "table", age(kind="bins", edges=[1, 0])),
    ("no values", "table", age(kind="categories", values=[])),
    ("mixed values", "table", age(kind="categories", values=["a", 1])),
    ("unknown policy", "table", age(kind="integer", low=0, high=9, outside="clipp")),
    ("draft that nobody reviewed", "table", {"domain:reviewed": False}),
    ("date that the calendar lacks", "table", {"domain:attributes.day.low": "2024-13"}),
    ("format of dates", "table", {"domain:attributes.day.format": "%d/%m"}),
    ("table that is shared twice", "table", {"domain:attributes.age.also": ["sex"]}),
    # data
    ("other delimiter", "table", {"file:x.csv": ROWS.replace(",", ";")}),
    ("other encoding", "table", {"file:x.csv": ROWS.replace("p1", "é").encode("latin-1")}),
    ("lines of other length", "table", {"file:x.csv": ROWS + "p9,1\n"}),
    ("empty file", "table", {"file:x.csv": ""}),
    ("damaged Parquet", "table", {"file:y.parquet": "no", "data.path": "y.parquet"}),
    ("unknown format", "table", {"data.format": "xml"}),
    ("absent column", "table", {"file:x.csv": ROWS.replace("age", "years")}),
    ("value outside", "table", {"file:x.csv": ROWS.replace("F", "W")}),
    ("null", "table", {"file:x.csv": ROWS.replace("33", "")}),
    ("text in place of a number", "table", {"file:x.csv": ROWS.replace("33", "old")}),
    ("filter that cannot be read", "table", {"data.where": "age = = 1"}),
    ("filter of an absent column", "table", {"data.where": "agee = 1"}),
    ("horizon of zero", "growing", {"time.horizon": 0}),
    ("period that is no attribute", "growing", {"data.period": "dy"}),
    ("window without its answers", "growing", {"time.window": 3}),
    ("time without periods", "table", {"time": {"horizon": 12}}),
    ("absent tree", "table", {"domain:attributes.place.file": "no.csv"}),
    ("level that the tree lacks", "table", {"domain:attributes.place.levels": ["land"]}),
    ("leaf with two paths", "table", {"file:places.csv": PLACES + "south,Bonn\n"}),
    ("policy of a hierarchy", "table", {"domain:attributes.place.outside": "clip"}),
    ("number with the name of an attribute", "table", {"domain:numbers.age": {"low": 0, "high": 1}}),
    ("number without an end", "table", {"domain:numbers.fare": {"low": 0}}),
    ("step that does not divide", "table", {"domain:numbers.fare.step": 0.3}),
    ("sum of an unknown number", "table", asked(family="sum", of="fair")),
    ("variance of two numbers", "table", asked(family="variance", of=["fare", "fare"])),
    ("link to an absent table", "tables", {"link.0.child": "visit"}),
    ("unknown kind of link", "tables", {"link.0.kind": "many"}),
    ("degree of zero", "tables", {"link.0.max_degree": 0}),
    ("table without a key", "tables", {"tables.people.key": REMOVED}),
    ("several tables and data", "tables", {"data": {"path": "x.csv", "domain": "d.toml"}}),
    ("column that no table has", "tables", {"link.0.child_key": "persn"}),
    ("attribute of an absent table", "tables", {"workload.0.attributes": [["peopl.sex", "visits.kind"]]}),
    ("attribute without a table", "tables", {"workload.0.attributes": [["sex", "visits.kind"]]}),
    ("links of a join that are absent", "tables", {"workload.0.through": ["visit"]}),
    ("rows per an absent table", "tables", {"workload.0.per": "visit"}),
    ("search with a range of policies", "table", {"domain:attributes.sex": {"kind": "discover", "outside": "reject"}}),
    ("search without delta", "table", {"domain:attributes.sex": {"kind": "discover"}, "privacy.delta": REMOVED}),
    ("share above 1", "table", {"domain:attributes.sex": {"kind": "discover"}, "budget": {"discover": 1.5}}),
    ("edges of a search", "table", {"domain:attributes.age": {"kind": "bins", "edges": "secret"}}),
    ("format that is no pattern", "table", {"domain:formats": {"person": {"pattern": "[A-"}}}),
    ("format of an attribute", "table", {"domain:formats": {"age": {"pattern": "[A-Z]{9}"}}}),
    ("unique that is no truth value", "table", {"domain:formats": {"id": {"pattern": "[A-Z]{9}", "unique": "no"}}}),
    ("more rows than texts", "table", {"domain:formats": {"id": {"pattern": "[A-Z]"}}, "synthesize": {"rows": 90}}),
    ("unique format of a growing table", "growing", {"domain:formats": {"id": {"pattern": "[A-Z]{9}"}}}),
    ("format of a foreign key", "tables", {"file:visits.toml": tomli_w.dumps(VISITS | FORMATS)}),
    (
        "format of a public table",
        "tables",
        {"file:visits.toml": tomli_w.dumps(VISITS | FORMATS), "tables.visits.public": True},
    ),
    ("rule on an absent attribute", "table", {"domain:rule": [{"rule": "agee != 'x'"}]}),
    ("rule that is no text", "table", {"domain:rule": [{"rule": 5}]}),
    (
        "rule on an attribute that is searched",
        "table",
        {"domain:attributes.sex": {"kind": "discover"}, "domain:rule": [{"rule": "if place = 'Ulm' then sex = 'F'"}]},
    ),
    ("rules that exclude every row", "table", {"domain:rule": [{"rule": "sex = 'F'"}, {"rule": "sex = 'M'"}]}),
    ("level with the name of an attribute", "table", {"domain:attributes.region": {"kind": "coded", "size": 3}}),
    ("day within a month", "table", predicates("day < 2024-02-15")),
    ("day that is no month", "table", predicates("day = 2024-02-01")),
    ("condition that no cell satisfies", "table", predicates("sex = 'F'", "sex = 'F' and sex = 'M'")),
    ("number for one of two codes", "table", predicates("sex = 01") | {"domain:attributes.sex.values": ["01", "1"]}),
    (
        "number for one of two codes in a rule",
        "table",
        {"domain:attributes.sex.values": ["01", "1"], "domain:rule": [{"rule": "if sex = 01 then place = 'Ulm'"}]},
    ),
    ("statements of the same name", "table", {"workload": [{"query": f"SELECT {one} FROM x"} for one in SELECTED]}),
]
COMMANDS: list[tuple[str, list[str]]] = [  # name, arguments; the run directory `done` is finished
    ("plan of an absent job", ["plan", "none.toml"]),
    ("error of an adaptive plan", ["plan", "adaptive.toml", "--error", "5"]),
    ("run directory that is none", ["job", "status", "nodir"]),
    ("report of another folder", ["run", ".", "--only", "report"]),
    ("job in a directory of another job", ["run", "other.toml", "--run-dir", "done"]),
    ("cap without a budget", ["ledger", "cap", "ledger.sqlite", "--dataset", "d", "--epsilon", "-1", "--delta", "0"]),
    ("cap of a large delta", ["ledger", "cap", "ledger.sqlite", "--dataset", "d", "--epsilon", "1", "--delta", "2"]),
    ("absent ledger", ["ledger", "show", "none.sqlite"]),
    ("budget that is spent", ["run", "job.toml", "--run-dir", "done", "--fresh"]),
    ("refinement without a budget", ["refine", "done", "--epsilon", "-1"]),
    ("period of a table of one moment", ["run", "done", "--period", "2024-02"]),
    ("rows of a mechanism without a model", ["model", "done"]),
    ("sketch of an absent file", ["domain", "sketch", "none.csv"]),
    ("sketch into a file that exists", ["domain", "sketch", "x.csv", "--output", "d.toml"]),
    ("sketch of an absent column", ["domain", "sketch", "x.csv", "--columns", "agee"]),
    ("wizard of an absent file", ["wizard", "none.csv"]),
    ("wizard of files of an unknown format", ["wizard", "x.csv", "--format", "xlsx"]),
    ("job without a domain file", ["domain", "sketch", "x.csv", "--job", "new.toml"]),
    ("comparison without rows", ["compare", "done", "x.csv", "--out", "done/compared"]),
    ("evidence of nothing", ["evidence"]),
    ("site in another folder", ["site", "done", "--out", "done"]),
    ("site of an absent ledger", ["site", "done", "--out", "new", "--ledger", "none.sqlite"]),
]  # fmt: skip

OWN = {"a": 3, "b": 4}
FRAME = pd.DataFrame({"a": [0, 1, 2], "b": [3, 0, 1], "who": ["x", "y", "x"]})


def small_domain() -> dp.Domain:
    return dp.Domain(OWN)


def pairs() -> dp.Workload:
    return dp.Workload(small_domain()).add("marginal", degree=2)


def small_plan(**options: Any) -> Any:
    return dp.plan([["a", "b"]], small_domain(), **{"epsilon": 1.0, "delta": 1e-9, **options})


def release() -> dp.Release:
    return dp.Release.open("done")


CALLS: list[tuple[str, Callable[[], Any]]] = [  # name, call in the folder of a finished run
    ("plan of nothing", lambda: dp.plan(None)),
    ("plan without a domain", lambda: dp.plan([["a"]], epsilon=1.0)),
    ("plan of an unknown attribute", lambda: dp.plan([["c"]], small_domain(), epsilon=1.0)),
    ("plan of no sets", lambda: dp.plan([], small_domain(), epsilon=1.0)),
    ("plan of no query", lambda: dp.plan(dp.Workload(small_domain()))),
    ("plan of an adaptive mechanism", lambda: dp.plan(pairs(), mechanism="aim-grem")),
    ("plan of a frame", lambda: dp.plan(FRAME, small_domain(), epsilon=1.0)),
    ("rows without a unit", lambda: small_plan(rows_per_unit=3)),
    ("unit without a bound", lambda: small_plan(unit="who")),
    ("fit of units without a bound", lambda: dp.Synthesizer(small_domain(), epsilon=1.0, unit="who").fit(FRAME)),
    ("unit without a budget", lambda: dp.plan([["a"]], small_domain(), unit="who")),
    ("negative budget", lambda: small_plan(epsilon=-1.0).errors),
    ("unknown mechanism of a plan", lambda: small_plan(mechanism="hdm").errors),
    ("budget beside a job", lambda: dp.plan("job.toml", epsilon=1.0)),
    ("run without data", lambda: dp.run(small_plan())),
    ("run of nothing", lambda: dp.run(None)),
    ("run of a list", lambda: dp.run(small_plan(), data=[1, 2])),
    ("frame without a column", lambda: dp.run(small_plan(), "new", data=FRAME[["a"]])),
    ("frame with a value outside", lambda: dp.run(small_plan(), "new", data=FRAME.assign(a=[7, 0, 1]))),
    ("frame without a unit", lambda: dp.run(small_plan(unit="person", rows_per_unit=2), "new", data=FRAME)),
    ("frame for a job with a path", lambda: dp.run("job.toml", "new", data=FRAME)),
    ("domain of a path", lambda: dp.Domain("d.toml")),
    ("domain of a frame", lambda: dp.Domain(a=FRAME)),
    ("name in a wrong encoding", lambda: dp.Domain({"a\udcff": 3})),
    ("sketch of a list", lambda: dp.sketch_domain([1, 2])),
    ("statement on another table", lambda: dp.sql("SELECT COUNT(*) FROM u", {"t": FRAME}, small_domain(), epsilon=1)),
    ("unknown dialect", lambda: dp.Workload(small_domain()).add_sql("SELECT COUNT(*) FROM t", dialect="postgress")),
    ("domain of two numbers", lambda: dp.Domain(a=(0, 100))),
    ("plan of a name", lambda: dp.plan("a", dp.Domain(a=2), epsilon=1)),
    ("negative size", lambda: dp.Domain(a=-1)),
    ("bins that do not divide", lambda: dp.Domain(a=dp.bins(0, 10, 3))),
    ("bins in reverse", lambda: dp.bins(10, 0, 1)),
    ("unknown period of dates", lambda: dp.Domain(a=dp.dates("2019", "2020", by="decade"))),
    ("name that the domain lacks", lambda: small_domain()["agee"]),
    ("family of a workload", lambda: dp.Workload(small_domain()).add("marginl", degree=1)),
    ("degree of a workload", lambda: dp.Workload(small_domain()).add("marginal", degree=5)),
    ("weight of a workload", lambda: dp.Workload(small_domain()).add("marginal", degree=1, weight=float("nan"))),
    ("sample before a fit", lambda: dp.Synthesizer(small_domain(), epsilon=1.0).sample(3)),
    ("sample of no rows", lambda: dp.Synthesizer(small_domain(), epsilon=1.0).sample(0)),
    ("fit of units without a column", lambda: dp.Synthesizer(small_domain(), epsilon=1.0, rows_per_unit=2).fit(FRAME)),
    ("fit without a column", lambda: dp.Synthesizer(small_domain(), epsilon=1.0, delta=1e-9).fit(FRAME[["a"]])),
    ("release of no run", lambda: dp.Release.open("nodir")),
    ("table that was not asked", lambda: release().table(["age", "place"])),
    ("name that the release lacks", lambda: release().marginal("agee")),
    ("sum of no number", lambda: release().sum("fare")),
    ("query of another shape", lambda: release().answer(("age",), query=[1.0, 2.0])),
    ("rows that were not made", lambda: release().synthetic()),
    ("units that were not counted", lambda: release().units(["age"])),
    ("cells that were not searched", lambda: release().found("age")),
    ("join of a single table", lambda: release().marginal(("people.sex", "visits.kind"))),
    ("period of a release of one moment", lambda: release().marginal("age", period="2024-02")),
]  # fmt: skip
