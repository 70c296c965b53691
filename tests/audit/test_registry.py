"""`dpscale evidence --registry`: the entry against its schema, ledger and closed forms; nothing of data or places."""

import copy
import json

import jsonschema
import pytest
from click.testing import CliRunner
from scipy.stats import norm

import dpscale as dp
from dpscale.__main__ import main
from dpscale.ledger import Ledger
from dpscale.privacy.attack_risk import rates_text
from tests.periods.growing import frames, make_job, write
from tests.runs.small import table, write_job, write_table


def run_command(*arguments, code=0):
    result = CliRunner().invoke(main, ["evidence", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if not code else result.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two releases of one dataset, of which the second has pure noise."""
    place = tmp_path_factory.mktemp("registry")
    write_table(place / "data", table())
    unit = {"data": {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 3}}
    dp.run(write_job(place, **unit), place / "run")
    pure = {"mechanism": {"name": "hdmm"}, "privacy": {"epsilon": 0.5, "dataset": "small"}}
    dp.run(write_job(place, "pure.toml", **unit, **pure), place / "pure")
    return place


def test_entry_follows_its_schema_and_names_unit_and_mechanism(place):
    schema = run_command("--registry", "--schema")
    jsonschema.Draft202012Validator.check_schema(schema)
    for name in ("run", "pure"):
        entry = run_command(place / name, "--registry")
        jsonschema.validate(entry, schema)
        for key in ("guarantee", "ledger", "unit"):
            broken = copy.deepcopy(entry)
            del broken[key]
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(broken, schema)
    assert entry["unit"]["column"] == "person"
    assert (entry["unit"]["rows_per_unit"], entry["unit"]["relation"]) == (3, "add/remove")
    assert entry["mechanisms"]["data"]["name"] == "hdmm"
    assert [one["name"] for one in entry["data"]["tables"]["data"]["attributes"]] == ["age", "sex", "income", "code"]


def test_guarantee_and_totals_are_those_of_the_ledger(place):
    entry, pure = (run_command(place / name, "--registry") for name in ("run", "pure"))
    with Ledger.open(place / "ledger.sqlite", create=False) as ledger:
        spent = ledger.summary()["datasets"]["small"]["spent"]
    assert entry["ledger"]["releases"] == 2
    for name, value in spent.items():
        assert entry["ledger"][name] == value
    own = entry["guarantee"]
    assert own["rho"] == pytest.approx(own["mu"] ** 2 / 2)
    assert own["epsilon"] == pytest.approx(1.0)
    assert pure["guarantee"]["pure_epsilon"] == pytest.approx(0.5)
    assert pure["guarantee"]["delta"] == 0
    for bounds, mu in (
        (entry["attack_risk"]["bounds"], own["mu"]),
        (entry["ledger"]["attack_risk"], spent["squared_mu"] ** 0.5),
    ):
        for one in bounds:
            level, rate = one["false_positive_rate"], one["true_positive_rate"]
            assert rate == pytest.approx(norm.sf(norm.isf(level) - mu), rel=1e-6)
    first = pure["attack_risk"]["bounds"][0]
    assert first["true_positive_rate"] == pytest.approx(0.05 * 2.718281828**0.5, rel=1e-6)


def test_entry_has_no_place_and_no_hash_of_records(place):
    text = json.dumps(run_command(place / "run", "--registry"))
    manifest = dp.Release.open(place / "run").manifest
    assert str(place) not in text
    assert manifest["snapshot"] not in text


def test_release_with_a_seed_has_no_guarantee(tmp_path):
    write_table(tmp_path / "data", table())
    job = write_job(tmp_path, engine={"scheduler": "synchronous", "memory": "1GiB", "seed": 3})
    entry = run_command(dp.run(job, tmp_path / "run").path, "--registry")
    assert entry["private"] is False
    assert entry["guarantee"]["epsilon"] is None
    assert {one["true_positive_rate"] for one in entry["attack_risk"]["bounds"]} == {1.0}
    assert {one["true_positive_rate"] for one in entry["ledger"]["attack_risk"]} == {1.0}


def test_growing_table_is_entered_with_its_horizon(tmp_path):
    write(tmp_path, frames())
    release = dp.run(make_job(tmp_path), tmp_path / "run")
    entry = run_command(release.path, "--registry")
    jsonschema.validate(entry, run_command("--registry", "--schema"))
    assert entry["unit"]["words"] == "one row"


def test_registry_without_run_or_with_both_is_refused(place):
    assert "neither a run directory nor --schema" in run_command("--registry", code=2)
    assert "or both" in run_command(place / "run", "--registry", "--schema", code=2)


def test_readme_of_a_bundle_states_the_attack_risk_of_release_and_totals(place):
    selftest = place / "selftest.json"
    selftest.write_text(json.dumps([{"name": "noise", "passed": True, "detail": ""}]))
    run_command(place / "run", "--selftest", selftest, "--json")
    readme = (place / "run" / "evidence" / "README.md").read_text()
    entry = run_command(place / "run", "--registry")
    assert entry["attack_risk"]["sentence"] in readme
    whole = {one["false_positive_rate"]: one["true_positive_rate"] for one in entry["ledger"]["attack_risk"]}
    assert f"on the ledger together: {rates_text(whole)}." in readme
    run_command("--check", place / "run" / "evidence", "--json")
