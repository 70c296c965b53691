"""Table of invalid inputs: the input, the exit code and a part of the message.

A refusal is one sentence and reveals no record; a refusal that is known in advance leaves no run directory.
"""

import gzip
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main

DOMAIN = "[attributes.a]\nkind = 'coded'\nsize = 3\n[attributes.b]\nkind = 'coded'\nsize = 4\n"
DATA, PRIVACY, ASKED = (
    "path = 'x.csv'\ndomain = 'd.toml'",
    "epsilon = 1.0\ndelta = 1e-9",
    "family = 'marginal'\ndegree = 1",
)
ATTRIBUTE = "[attributes.x]\n"


def write_job(
    place, data=DATA, privacy=PRIVACY, asked=ASKED, more="", domain=DOMAIN, csv=b"a,b\n1,2\n0,1\n", name="x.csv"
):
    (place / "d.toml").write_text(domain)
    (place / name).write_bytes(csv)
    job = f"[data]\n{data}\n[privacy]\n{privacy}\n[[workload]]\n{asked}\n{more}"
    (place / "job.toml").write_text(job)
    return place / "job.toml"


JOBS = [  # what is wrong in a job file, and what the sentence says
    ({"data": "pth = 'x.csv'\ndomain = 'd.toml'"}, "did you mean 'path'"),
    ({"data": "path = 'x.csv'"}, "data.domain: missing"),
    ({"data": DATA.replace("x.csv", "y.csv")}, "no file at"),
    ({"data": DATA.replace("d.toml", "e.toml")}, "cannot read"),
    ({"data": DATA + "\ndelimiter = ';;'"}, "one ASCII character"),
    ({"data": DATA + "\nencoding = 'utf-9'"}, "a text encoding"),
    ({"data": DATA + "\nheader = false"}, "data.header: false without names"),
    ({"data": DATA + "\nnames = ['a', 'a']\nheader = false"}, "data.names: 'a' more than once"),
    ({"data": DATA + "\nformat = 'xml'"}, "data.format"),
    ({"data": DATA + "\nversion = 3"}, "version requires format"),
    ({"data": DATA + "\nwhere = 'a = = 1'"}, "data.where"),
    ({"data": DATA + "\nwhere = 'a = 1 or b = 2'"}, "in (…)"),
    ({"data": DATA + "\nprivacy_unit = 'p'"}, "require each other"),
    ({"data": DATA + "\nprivacy_unit = 'p'\nmax_rows_per_unit = 0"}, "at least 1"),
    ({"data": DATA + "\nprivacy_unit = 'p'\nmax_rows_per_unit = 1"}, "'p', which is not a column of the data"),
    ({"data": DATA + "\nsnapshot = 'all'"}, "data.snapshot"),
    ({"data": DATA + "\nlinks = 'yes'"}, "true or false"),
    ({"privacy": "epsilon = 1.0\ndelta = 0.0"}, "a number above 0 and below 1"),
    ({"privacy": "epsilon = 1.0\ndelta = 1.5"}, "below 1"),
    ({"privacy": "epsilon = 0.0"}, "above 0"),
    ({"privacy": "epsilon = -1.0"}, "above 0"),
    ({"privacy": "epsilon = 1e300"}, "at most 1e+12"),
    ({"privacy": "epsilon = nan"}, "privacy.epsilon"),
    ({"privacy": "epsilon = '1'"}, "a number"),
    ({"privacy": "epsilon = true"}, "privacy.epsilon"),
    ({"privacy": "epsilon = 30.0\ndelta = 1e-9"}, "allow_weak_privacy = true"),
    ({"privacy": "epsilon = 1.0\ndelta = 0.01"}, "one whole record in 100"),
    ({"privacy": "epsilon = 1.0\ndelta = 1e-3\npublic_rows = 10000"}, "1 / public_rows"),
    ({"privacy": "rho = 0.1\nepsilon = 1.0"}, "or rho"),
    ({"privacy": "delta = 1e-9"}, "epsilon"),
    ({"privacy": "epsilom = 1.0"}, "did you mean 'epsilon'"),
    ({"privacy": PRIVACY + "\ndataset = ''"}, "printable"),
    ({"privacy": PRIVACY + "\nledger = 'x.csv'"}, "not a SQLite file"),
    ({"privacy": PRIVACY + "\nledger = 'no/such'"}, "privacy.ledger"),
    ({"privacy": PRIVACY + "\npublic_rows = 0"}, "at least 1"),
    ({"asked": "degree = 1"}, "family: missing"),
    ({"asked": "family = 'marginal'"}, "degree and attributes"),
    ({"asked": "family = 'marginl'\ndegree = 1"}, "did you mean 'marginal'"),
    ({"asked": "family = 'marginal'\ndegre = 1"}, "did you mean 'degree'"),
    ({"asked": "family = 'marginal'\ndegree = '1'"}, "an integer"),
    ({"asked": "family = 'marginal'\ndegree = 1.5"}, "an integer"),
    ({"asked": "family = 'marginal'\ndegree = 7"}, "from 0 to 2"),
    ({"asked": "family = 'marginal'\nattributes = 'ab'"}, "[[\"age\", \"sex\"]"),
    ({"asked": "family = 'marginal'\nattributes = ['a', 'b']"}, "[[\"age\", \"sex\"]"),
    ({"asked": "family = 'marginal'\nattributes = [['c']]"}, "no attribute 'c'"),
    ({"asked": "family = 'marginal'\nattributes = [['a', 'a']]"}, "distinct names"),
    ({"asked": "family = 'marginal'\ndegree = 1\nweight = 'x'"}, "a number"),
    ({"asked": "family = 'marginal'\ndegree = 1\nweight = -1.0"}, "at least 0"),
    ({"asked": "family = 'marginal'\ndegree = 1\nweight = 0.0"}, "give a weight above 0 to the queries to answer"),
    ({"asked": "family = 'marginal'\ndegree = 1\nweight = [1.0]"}, "weight"),
    ({"asked": "family = 'affine'\ndegree = 1"}, "affine"),
    ({"asked": "family = 'random'\ndegree = 1\np = 2.0"}, "workload.p"),
    ({"asked": "family = 'hybrid'\ndegree = 1\nnumeric = ['z']"}, "z"),
    ({"asked": "family = 'predicates'\nfile = 'q.npy'\nattributes = [['a']]"}, "cannot be read"),
    ({"asked": "family = 'marginal'\ndegree = 1\nfile = 'q.npy'"}, "predicates only"),
    ({"more": "[mechansm]\nname = 'hdmm'"}, "did you mean 'mechanism'"),
    ({"more": "[mechanism]\nname = 'aim-grem'\n[reconstruct]\nerrors = 'simulate'"}, "did you mean 'simulated'"),
    ({"more": "[reconstruct]\nerrors = 'simulated'"}, "adaptive mechanism); there are: auto"),
    ({"more": "[mechanism]\nname = 'hdm'"}, "did you mean 'hdmm'"),
    ({"more": "[mechanism]\nname = 'hdmm'\nwy = 'union'"}, "did you mean 'way'"),
    ({"more": "[mechanism]\nname = 'hdmm'\nway = 'unoin'"}, "did you mean 'union'"),
    ({"more": "[mechanism]\nname = 'aim-grem'\ndegree = 9"}, "a whole number from 2 to 6"),
    ({"more": "[mechanism]\nname = 3"}, "a text"),
    ({"more": "[reconstruct]\nmethod = 'leastsquares'"}, "did you mean 'least-squares'"),
    ({"more": "[reconstruct]\nmetod = 'grem'"}, "reconstruct.metod"),
    ({"more": "[engine]\nmemory = '4 GB of'"}, "a size such as 4GiB"),
    ({"more": "[engine]\nmemry = '4GB'"}, "did you mean 'memory'"),
    ({"more": "[engine]\nmemory = '12B'"}, "the 12 bytes for counting"),
    ({"more": "[engine]\nscheduler = 'thread'"}, "threads, processes"),
    ({"more": "[engine]\nseed = 'x'"}, "an integer"),
    ({"more": "[output]\nmax_row = 3"}, "did you mean 'max_rows'"),
    ({"more": "[output]\nmax_rows = -3"}, "at least 0"),
    ({"more": "[synthesize]\nrows = 0"}, "at least 1"),
    ({"more": "[synthesize]\nmethod = 'x'"}, "'ancestral'"),
    ({"more": "[synthesize]\nmethod = 'ancestral'"}, "graphical"),
    ({"more": "[synthesize]\nformat = 'xlsx'"}, "'parquet' or 'csv'"),
    ({"more": "[tables.t]\npath = 'x'"}, "engine, joins, link, privacy, rule, synthesize"),
    ({"more": "[data2]\npath = 'x'"}, "did you mean 'data'"),
    ({"more": "nonsense ="}, "is not TOML"),
]  # fmt: skip
FILES = [  # what is wrong with the data
    ({"csv": "a,b\n1,é\n".encode("latin-1")}, 'encoding = "latin-1"'),
    ({"csv": "a,b\n1,2\n".encode("utf-16")}, 'encoding = "utf-16"'),
    ({"csv": b"a;b\n1;2\n"}, 'delimiter = ";"'),
    ({"csv": b"a\tb\n1\t2\n"}, 'delimiter = "\\t"'),
    ({"csv": b"a|b\n1|2\n"}, 'delimiter = "|"'),
    ({"csv": b"a,b\n1,2,3\n"}, "more or fewer fields"),
    ({"csv": b"a,b\n1,2\n3\n"}, "more or fewer fields"),
    ({"csv": gzip.compress(b"a,b\n1,2\n")}, "compressed by gzip: name it x.csv.gz"),
    ({"csv": b"\x28\xb5\x2f\xfd12345"}, "compressed by zstd: name it x.csv.zst"),
    ({"name": "x.csv.gz", "data": DATA.replace("x.csv", "x.csv.gz")}, "not compressed by gzip"),
    ({"csv": b""}, "is empty"),
    ({"csv": b"a,c\n1,2\n"}, "no column 'b'"),
    ({"csv": b"a,b\n1,9\n"}, "a value outside the domain"),
    ({"csv": b"a,b\n1,\n"}, "a null"),
    ({"csv": b"a,b\n1,x\n"}, "a text that is no number"),
    ({"csv": b"a,b\n1,1.5\n"}, "a value outside the domain"),
    ({"name": "x.parquet", "data": DATA.replace("x.csv", "x.parquet")}, "damaged or not of its format"),
    ({"name": "x.arrow", "data": DATA.replace("x.csv", "x.arrow")}, "damaged or not of its format"),
    ({"name": "x.txt", "data": DATA.replace("x.csv", "x.txt")}, "Parquet, CSV, TSV, Arrow or NDJSON files"),
    ({"data": DATA + "\nwhere = 'c = 1'"}, "no column 'c'"),
]  # fmt: skip
AFTERWARDS = ("more or fewer", "outside", "a null", "no number", "bytes set", "threads, processes", "ancestral' with")


@pytest.mark.parametrize(("changes", "says"), JOBS + FILES)
def test_invalid_job_or_file_is_refused_in_one_sentence(changes, says, tmp_path):
    result = CliRunner().invoke(
        main, ["run", str(write_job(tmp_path, **changes)), "--run-dir", str(tmp_path / "run"), "--quiet"]
    )
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr
    assert result.stderr.startswith("dpscale: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 600
    if not any(late in result.stderr for late in (*AFTERWARDS, "weigh what", "privacy.ledger")):
        assert not (tmp_path / "run").exists()


DOMAINS = [  # what is wrong in a domain file (an attribute's table, but for the first), and what the sentence says
    ("[atributes.x]\nkind = 'coded'\nsize = 3", "did you mean 'attributes'"),
    ("attributes = 3", "tables [attributes.NAME]"),
    ("", "at least one attribute"),
    (ATTRIBUTE, "kind: missing"),
    (ATTRIBUTE + "kind = 'intger'\nlow = 0\nhigh = 1", "did you mean 'integer'"),
    (ATTRIBUTE + "kind = 3", "attributes.x.kind: 3"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0", "high: missing"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 1\nstep = 2", "unknown key 'step'"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigth = 1\nhigh = 1", "did you mean 'high'"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 5\nhigh = 1", "swap them"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0.5\nhigh = 1", "an integer"),
    (ATTRIBUTE + "kind = 'integer'\nlow = '0'\nhigh = 1", "an integer"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 9007199254740993", "use kind bins"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 8589934592", "at most 2^32 cells"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 0", "at least 2 cells"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 1\noutside = 'clipp'", "did you mean 'clip'"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 1\nnulls = 'clip'", "reject, category, drop"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 1\nnulls = true", "nulls: True"),
    (ATTRIBUTE + "kind = 'integer'\nlow = 0\nhigh = 10\nround = 0", "round: 0"),
    (ATTRIBUTE + "kind = 'coded'\nsize = 0", "a positive number"),
    (ATTRIBUTE + "kind = 'coded'\nsize = -3", "a positive number"),
    (ATTRIBUTE + "kind = 'coded'\nsize = 'x'", "an integer"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = []", "a list of texts or numbers"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = 'ab'", "a list of texts or numbers"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = ['a', 1]", "quote the numbers"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = ['a', 'a']", "distinct values"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = ['a', 'b']\noutside = 'clip'", "no nearest value"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = ['a', 'b']\nunparsable = 'drop'", "use outside instead"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = ['a', '(null)']\nnulls = 'category'", "the label of nulls"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = [inf, 1.0]", "not finite"),
    (ATTRIBUTE + "kind = 'categories'\nmap = ['a']", "not a table of lists"),
    (ATTRIBUTE + "kind = 'categories'\nmap = { a = [] }", "an empty list"),
    (ATTRIBUTE + "kind = 'categories'\nmap = { '(outside)' = ['a'] }", "a name that is not a value"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = ['a', 'b']\nparent = 'region'", "tables of groups"),
    (ATTRIBUTE + "kind = 'categories'\nvalues = ['a', 'b']\nparent = { r = { q = ['a', 'b', 'a'] } }", "twice"),
    (ATTRIBUTE + "kind = 'bins'\nedges = [0]", "two or more increasing numbers"),
    (ATTRIBUTE + "kind = 'bins'\nedges = [1, 0]", "not increasing"),
    (ATTRIBUTE + "kind = 'bins'\nedges = ['a', 'b']", "finite numbers"),
    (ATTRIBUTE + "kind = 'bins'\nedges = [0, inf]", "finite numbers"),
    (ATTRIBUTE + "kind = 'bins'\nedges = [0, 1]\nlog = 1", "a base above 1"),
    (ATTRIBUTE + "kind = 'date'\nby = 'month'\nlow = 2020", "high: missing"),
    (ATTRIBUTE + "kind = 'date'\nby = 'decade'\nlow = 2020\nhigh = 2021", "day, week, month, quarter, year"),
    (ATTRIBUTE + "kind = 'date'\nby = 'day'\nlow = 2020\nhigh = 2021", "a day, as 2025-01-31"),
    (ATTRIBUTE + "kind = 'date'\nby = 'week'\nlow = '2020-W60'\nhigh = 2021-01-01", "a date of the calendar"),
    (ATTRIBUTE + "kind = 'date'\nby = 'year'\nlow = true\nhigh = 2021", "a year, as 2025"),
    (ATTRIBUTE + "kind = 'boolean'\nvalues = [true]", "unknown key 'values'"),
    (ATTRIBUTE + "kind = 'text-prefix'\nlength = 0\nvalues = ['a']", "a positive number of letters"),
    (ATTRIBUTE + "kind = 'text-prefix'\nvalues = ['a']", "length: missing"),
    (ATTRIBUTE + "kind = 'coded'\nsize = 3\nfrom = 3", "the name of a column"),
    (ATTRIBUTE + "kind = 'coded'\nsize = 3\n[[rule]]\nrule = 'y != 1'", "no attribute 'y'"),
    (ATTRIBUTE + "kind = 'coded'\nsize = 3\n[[rule]]\nrule = 'x != 7'", "a value of x"),
    (ATTRIBUTE + "kind = 'coded'\nsize = 3\n[[rule]]\nholds = 'x != 1'", "tables with the key rule"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), DOMAINS)
def test_invalid_domain_is_refused_in_one_sentence(text, says):
    with pytest.raises(dp.DomainError) as refused:
        dp.Domain.from_dict(tomllib.loads(text))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


COMMANDS = [
    (["plan", "none.toml"], 2, "cannot read"),
    (["plan", "."], 2, "cannot read"),
    (["rn"], 2, "Did you mean"),
    (["ledger", "show", "none.sqlite"], 2, "does not exist"),
    (["ledger", "cap", "l.sqlite", "--dataset", "d", "--epsilon", "-1", "--delta", "0"], 2, "a finite number > 0"),
    (["ledger", "cap", "l.sqlite", "--dataset", "d", "--epsilon", "1", "--delta", "2"], 2, "1e-9 is a usual choice"),
    (["domain", "sketch", "none.csv"], 2, "no file at"),
    (["check", "domain", "none.toml"], 2, "cannot read"),
    *[(["run", "nodir", "--only", stage], 2, "is not one") for stage in ("measure", "reconstruct", "report")],
    *[(["job", name, "nodir"], 2, "is not one") for name in ("status", "wait", "end", "stages")],
    *[([name, "nodir"], 2, "is not one") for name in ("run", "evidence", "rows")],
    (["run", ".", "--fresh"], 2, "--fresh: given for ., which is no job file"),
    (["run", "job.toml", "--only", "plan", "--period", "2024-01"], 2, "--period: given together with --only"),
    (["compare", "nodir", "x", "--out", "y"], 2, "is not one"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "says"), COMMANDS)
def test_invalid_command_is_refused(arguments, code, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, says in result.stderr) == (code, True), result.stderr


OWN = dp.Domain({"a": 3, "b": 4})
ASKING = dp.Workload(OWN).add("marginal", degree=2)
PLAN = dp.plan(ASKING, "identity")
CALLS = {
    "plan of a path": (lambda: dp.plan("job.toml"), "job.toml"),
    "plan of nothing": (lambda: dp.plan(None), "a Workload"),
    "mechanism": (lambda: dp.plan(ASKING, "hdm"), "did you mean 'hdmm'"),
    "option": (lambda: dp.plan(ASKING, "hdmm", wy=3), "did you mean 'way'"),
    "noise": (lambda: dp.plan(ASKING, noise="gauss"), "gaussian or laplace"),
    "variance of a text": (lambda: PLAN.variance(("a", "b"), "x"), "an array of finite numbers"),
    "variance of NaN": (lambda: PLAN.variance(("a", "b"), np.full((3, 4), np.nan)), "not finite"),
    "variance of a ragged list": (lambda: PLAN.variance(("a",), [[1], [1, 2]]), "a number for every cell"),
    "variance of a shape": (lambda: PLAN.variance(("a",), [1, 2]), "an array of shape (3,)"),
    "attributes as a text": (lambda: PLAN.variance("ab", np.ones((3, 4))), "no attribute 'ab'"),
    "attributes as a number": (lambda: PLAN.variance(3, [1]), "a list of names"),
    "strategy": (lambda: PLAN.strategy("ab"), "no attribute 'ab'"),
    "rmse at 0": (lambda: PLAN.rmse(0), "a number above 0"),
    "rmse at a text": (lambda: PLAN.rmse("x"), "a number above 0"),
    "domain of a path": (lambda: dp.Domain("d.toml"), "Domain.read(path)"),
    "domain of nothing": (lambda: dp.Domain(None), "values by name"),
    "domain of names": (lambda: dp.Domain(["a"]), "values by name"),
    "size": (lambda: dp.Domain({"a": -1}), "a positive number"),
    "name": (lambda: OWN["agee"], "no attribute 'agee'"),
    "workload of a dict": (lambda: dp.Workload({"a": 3}), "a Domain"),
    "family": (lambda: dp.Workload(OWN).add("marginl", degree=1), "did you mean 'marginal'"),
    "degree": (lambda: dp.Workload(OWN).add("marginal", degree=5), "from 0 to 2"),
    "sets as a text": (lambda: dp.Workload(OWN).add("marginal", attributes="ab"), "a list of attribute sets"),
    "weight": (lambda: dp.Workload(OWN).add("marginal", degree=1, weight=float("nan")), "a finite number"),
    "queries of texts": (lambda: dp.Workload(OWN).add_queries(("a",), [["x", "y", "z"]]), "a number for every cell"),
    "queries of NaN": (lambda: dp.Workload(OWN).add_queries(("a",), [[np.nan, 1, 2]]), "finite numbers"),
    "table": (lambda: dp.Table.open("none.csv", OWN), "no file at"),
    "table without a domain": (lambda: dp.Table.open("none.csv", "d.toml"), "a Domain"),
    "counts of a path": (lambda: dp.count_marginals("x.csv", [("a",)]), "Table.open"),
    "run of nothing": (lambda: dp.run(None), "the path of a job file"),
    "release of nothing": (lambda: dp.Release.open(None), "a path"),
    "release of no run": (lambda: dp.Release.open("nodir"), "is not one"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_invalid_call_is_refused_with_remedy(name):
    call, says = CALLS[name]
    with pytest.raises(dp.DpscaleError) as refused:
        call()
    assert says in str(refused.value)


def test_table_has_at_least_150_cases():
    assert len(JOBS) + len(FILES) + len(DOMAINS) + len(COMMANDS) + len(CALLS) >= 150


def test_release_refuses_invalid_queries(tmp_path):
    release = dp.run(write_job(tmp_path, more="[engine]\nscheduler = 'synchronous'"), tmp_path / "run")
    for call, says in ((lambda: release.marginal("ab"), "no attribute 'ab'"), (release.synthetic, "dpscale rows"),
                       (lambda: release.answer(("a",), query="abc"), "finite numbers"),
                       (lambda: release.answer(("a",), query=[np.nan, 0, 0]), "not finite")):  # fmt: skip
        with pytest.raises(dp.DpscaleError) as refused:
            call()
        assert says in str(refused.value)


def test_exhausted_cap_refuses_before_creating_run(tmp_path):
    job = write_job(tmp_path, privacy=PRIVACY + "\nledger = 'l.sqlite'\ndataset = 'd'")
    invoke = CliRunner().invoke
    invoke(main, ["ledger", "cap", str(tmp_path / "l.sqlite"), "--dataset", "d", "--epsilon", "1", "--delta", "1e-9"])
    assert invoke(main, ["run", str(job), "--run-dir", str(tmp_path / "one")]).exit_code == 0
    refused = invoke(main, ["run", str(job), "--run-dir", str(tmp_path / "two"), "--fresh"])
    assert refused.exit_code == 3
    assert "too little is left: raise the cap" in refused.stderr
    assert "e-05" not in refused.stderr.split("; ", 1)[1]
    assert not (tmp_path / "two").exists()
