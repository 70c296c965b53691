"""Examples in docstrings of the public interface run, and its functions have results of a stated type."""

import doctest
import functools
import inspect
import warnings

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.api.public import SpentWarning
from tests.joins.test_answers import release_of
from tests.links.small import make_frames
from tests.periods.growing import frames, make_job, open_release, release as release_months, write

SPECIAL = ("growing", "database", "places", "model", "found")


def public_members():
    """Yield name, object and function of each public name and of each public member of the classes."""
    for name in dp.__all__:
        thing = getattr(dp, name)
        yield name, thing, thing
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            own = {member for base in thing.__mro__ if base.__module__.startswith("dpscale") for member in vars(base)}
            for member in sorted(one for one in own if not one.startswith("_")):
                found = inspect.getattr_static(thing, member)
                if callable(found) or isinstance(found, classmethod | property | functools.cached_property):
                    yield f"{name}.{member}", found, function_of(found)


def function_of(member):
    if isinstance(member, property):
        return member.fget
    return getattr(member, "func", getattr(member, "__func__", member))


MEMBERS = {name: (thing, function) for name, thing, function in public_members()}
EXAMPLES = {name: text for name, (thing, _) in MEMBERS.items() if ">>>" in (text := inspect.getdoc(thing) or "")}
CONTRACT = {  # documented in docs/contract.md, of other packages than dpscale.api
    "Attribute", "Attribute.describe", "Domain", "Domain.from_dict", "Domain.read", "Domain.to_dict", "Domain.to_files",
    "Domain.without", "DpscaleError", "Estimate", "Ledger", "Ledger.set_cap", "Plan",
    "Plan.optimality_gap", "Plan.query_count", "Plan.rmse", "Plan.strategy", "Plan.variance",
    "Sketch", "Sketch.text", "Sketch.write", "Table",
    "Table.open", "Table.require", "Table.types",
    "Workload", "Workload.add", "Workload.add_conditions", "Workload.add_product", "Workload.add_queries",
    "Workload.query_count", "bins", "count_marginals", "dates", "privacy", "sketch_domain",
}  # fmt: skip
OWN = {
    name
    for name, (_, function) in MEMBERS.items()
    if getattr(function, "__module__", "").startswith("dpscale.api") and inspect.getdoc(function)
}


def make_trips():
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 92, 2000), "D")
    columns = {"borough": rng.choice(["Bronx", "Queens"], 2000), "fare": rng.uniform(0, 99, 2000), "day": days}
    return pd.DataFrame({**columns, "tip": rng.uniform(0, 20, 2000), "person": rng.integers(0, 800, 2000)})


def make_special(name, folder):
    """Return a release of several periods, of several tables, of places, of a model, or with cells found privately."""
    if name == "growing":
        write(folder, frames())
        return open_release(release_months(make_job(folder), folder / "run", ["2026-01", "2026-02"]))
    if name == "database":
        return release_of(folder, make_frames(), bound=2)
    privacy = {"epsilon": 8.0, "delta": 1e-9, "dataset": name, "ledger": str(folder / f"{name}.sqlite")}
    job = {"data": {"domain": str(folder / f"{name}.toml")}, "privacy": privacy}
    frame = make_trips()
    if name == "places":
        tree = pd.DataFrame(
            {"place": ["Graz", "Linz", "Bonn"], "state": ["ST", "OÖ", "NW"], "country": ["AT", "AT", "DE"]}
        )
        tree.to_csv(folder / "tree.csv", index=False)
        domain = 'attributes.place = {kind = "hierarchy", file = "tree.csv", levels = ["country", "state"]}'
        job["workload"] = [{"family": "marginal", "attributes": [["country"], ["state"], ["place"]]}]
        frame = pd.DataFrame({"place": np.resize(["Graz", "Linz", "Bonn"], 900)})
    elif name == "model":
        domain = (
            'attributes.borough = {kind = "categories", values = ["Bronx", "Queens"]}\nattributes.a.kind = "boolean"'
        )
        job |= {"workload": [{"family": "marginal", "degree": 2}], "reconstruct": {"method": "graphical"}}
        frame = frame.assign(a=frame["fare"] > 50)
    else:
        domain = 'attributes.borough = {kind = "discover", max_length = 10}'
        job["workload"] = [{"family": "marginal", "degree": 1}]
    (folder / f"{name}.toml").write_text(domain)
    return dp.run(job, run_dir=folder / "run", data=frame)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Names that examples use: the frame `trips`, its `domain`, and a `release` with numbers and synthetic rows."""
    folder = tmp_path_factory.mktemp("examples")
    trips = make_trips()
    domain = dp.Domain(
        borough=["Bronx", "Queens"], fare=dp.bins(0, 100, 25), day=dp.dates("2019-03", "2019-05", "month")
    )
    content = domain.to_dict() | {"numbers": {"tip": {"low": 0, "high": 20}}}
    numbers = [
        {"family": family, "of": "tip", "attributes": [["borough"], []]} for family in ("mean", "sum", "variance")
    ]
    job = {
        "data": {"privacy_unit": "person", "max_rows_per_unit": 10},
        "privacy": {"epsilon": 8.0, "delta": 1e-9, "dataset": "trips", "ledger": str(folder / "ledger.sqlite")},
        "workload": [
            {"family": "marginal", "attributes": [["borough", "fare"], ["day"]]},
            {"family": "marginal", "attributes": [["borough"]], "count": "units"},
            *numbers,
        ],
        "synthesize": {"rows": 500},
    }
    path = folder / "trips.toml"
    for name, packed in dp.Domain.from_dict(content).to_files(path.name).items():
        (folder / name).write_bytes(packed)
    job["data"]["domain"] = str(path)
    return {"dp": dp, "trips": trips, "domain": domain, "release": dp.run(job, run_dir=folder / "run", data=trips)}


@pytest.fixture(scope="module")
def special(tmp_path_factory):
    return functools.cache(lambda name: make_special(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "user"))
    warnings.simplefilter("ignore", SpentWarning)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name, names, special, place):
    text = EXAMPLES[name]
    own = {one: special(one) for one in SPECIAL if f"{one}." in text}
    home = vars(inspect.getmodule(MEMBERS[name][1]))
    example = doctest.DocTestParser().get_doctest(text, {**home, **names, **own}, name, None, 0)
    assert all(doctest.SKIP not in one.options for one in example.examples)
    said = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)


def test_every_public_docstring_of_the_interface_has_an_example():
    assert sorted((OWN | CONTRACT) - set(EXAMPLES)) == []
    assert len(OWN) > 40


def test_results_have_types():
    vague = {name for name, (_, function) in MEMBERS.items() if inspect.isfunction(function)
             and inspect.signature(function).return_annotation in ("Any", inspect.Signature.empty)}  # fmt: skip
    assert vague == set()
