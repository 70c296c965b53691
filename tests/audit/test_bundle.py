"""An evidence bundle holds for what a run really drew, and nothing planted in it or flipped gets past the check."""

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from fractions import Fraction

import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import bundle, check, draws, recompute, sensitivities
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.privacy.conversion import epsilon_of_mu
from dpscale.runs.run import Run
from dpscale.runs.stages import measure
from tests.audit.leaks import leaks_under, planted_frame
from tests.audit.small import write

PASSED = [{"name": "one", "passed": True, "detail": "as it should"}]
UNSEEDED = {"scheduler": "synchronous"}
UNIT = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 3}
ROW = {"path": "data", "domain": "domain.toml"}
GAUSSIAN, PURE = {"epsilon": 1.0, "delta": 1e-9, "dataset": "small"}, {"epsilon": 0.7, "dataset": "small"}
MATRICES = ("query-smasher", "weighted-residuals", "hdmm", "identity", "residual-planner")
OTHERS = ("eigen-design", "aim-grem", "aim-pgm", "mst")
KINDS = [
    *((name, privacy) for name in MATRICES for privacy in (GAUSSIAN, PURE)),
    *((name, GAUSSIAN) for name in OTHERS),
]


def a_run(place, mechanism="query-smasher", privacy=GAUSSIAN, data=ROW, engine=UNSEEDED, name="run"):
    job = write(place, mechanism={"name": mechanism}, privacy=privacy, data=data, engine=engine,
                workload=[{"family": "prefix", "degree": 2}])  # fmt: skip
    return dp.run(job, place / name).path


def bundled(run, key=None):
    return bundle.write_bundle(Run(run), PASSED, key)


def command(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def selftest(tmp_path_factory):
    path = tmp_path_factory.mktemp("selftest") / "selftest.json"
    path.write_text(json.dumps(PASSED))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Bundles that tests copy: of a plan, of an adaptive run, and one of Laplace noise."""
    kinds = {"plan": ("query-smasher", GAUSSIAN), "adaptive": ("aim-grem", GAUSSIAN), "laplace": ("identity", PURE)}
    return {name: bundled(a_run(tmp_path_factory.mktemp(name), *kind)) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two key pairs as PEM files, made by OpenSSL's own command: (private, public)."""
    place, made = tmp_path_factory.mktemp("keys"), []
    for name in ("curator", "other"):
        private, public = place / f"{name}.pem", place / f"{name}.pub.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
        made.append((private, public))
    return made


# ---- what holds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mechanism", "privacy"), KINDS, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("data", [ROW, UNIT], ids=["rows", "units"])
def test_the_draws_cost_what_was_charged_and_nearly_all_of_it(tmp_path, mechanism, privacy, data):
    folder = bundled(a_run(tmp_path, mechanism, privacy, data))
    found = check_bundle(folder)
    assert found["signed_by"] is None
    assert found["private"]
    assert found["own_scripts"]
    listed, ledger = recompute.read(folder, "draws.json"), recompute.read(folder, "ledger.json")
    events, faults = recompute.check_draws(listed, recompute.read(folder, "strategies.json")["factors"])
    paid, due = recompute.charged_and_due(ledger["releases"][0]["cost"], events)
    assert not faults
    assert paid * 999 / 1000 < due <= paid
    assert found["release"]["epsilon"] == pytest.approx(privacy["epsilon"], rel=1e-6)
    assert found["release"]["delta"] == privacy.get("delta", 0)


@pytest.mark.parametrize("kind", ["plan", "adaptive", "laplace"])
def test_the_script_alone_says_so_with_the_standard_library_and_with_dp_accounting(made, tmp_path, kind):
    folder = shutil.copytree(made[kind], tmp_path / "bundle")
    alone = subprocess.run(
        [sys.executable, "-I", "-S", folder / "recompute.py"], capture_output=True, text=True, cwd="/"
    )
    assert alone.returncode == 0, alone.stderr
    assert "dp-accounting is not installed" in alone.stdout
    assert alone.stdout.endswith("all claims are correct\n")
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"
    pytest.importorskip("dp_accounting")
    beside = subprocess.run([sys.executable, folder / "recompute.py"], capture_output=True, text=True, cwd="/")
    assert (beside.returncode, beside.stderr) == (0, "")
    assert "dp-accounting, PLD" in beside.stdout
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"


def test_dp_accounting_alone_finds_a_claim_that_is_too_low(made, tmp_path, capsys):
    pytest.importorskip("dp_accounting")
    for kind, factor in (("plan", 0.99), ("adaptive", 0.95), ("laplace", 0.99)):
        folder = shutil.copytree(made[kind], tmp_path / kind)
        events = recompute.read(folder, "events.json")
        claim = events["release"] | {"epsilon": events["release"]["epsilon"] * factor}
        assert not recompute.account("release", events["release"])[1]
        assert "is claimed" in recompute.account("release", claim)[1]


def test_all_releases_of_the_dataset_are_counted_whatever_their_kind(tmp_path):
    for number, (mechanism, privacy) in enumerate([("identity", GAUSSIAN), ("identity", PURE), ("hdmm", GAUSSIAN)]):
        run = a_run(tmp_path, mechanism, privacy, name=f"run{number}")
    folder = bundled(run)
    assert check_bundle(folder)["dataset"]["epsilon"] > check_bundle(folder)["release"]["epsilon"]
    assert len(recompute.read(folder, "ledger.json")["releases"]) == 3
    assert subprocess.run([sys.executable, folder / "recompute.py"], capture_output=True).returncode == 0


def test_what_group_privacy_adds_is_an_event_of_the_dataset(tmp_path):
    """A release for units of a dataset that protects rows counts twice in squared steps: four times its squared μ."""
    a_run(tmp_path, "identity", name="one")
    folder = bundled(a_run(tmp_path, "identity", data=UNIT, name="two"))
    assert check_bundle(folder)["sound"]
    events = recompute.count_events(recompute.read(folder, "events.json")["dataset"]["events"])
    charged = [recompute.squared_mu(row["cost"]) for row in recompute.read(folder, "ledger.json")["releases"]]
    assert float(recompute.total(events, "gaussian")) == pytest.approx(float(charged[0] + 4 * charged[1]), rel=1e-9)


def test_group_privacy_that_is_left_out_is_found(tmp_path):
    """A ledger and events that say of the units' release what it would cost alone, with hashes that fit."""
    a_run(tmp_path, "identity", name="one")
    folder = bundled(a_run(tmp_path, "identity", data=UNIT, name="two"))
    rows = recompute.read(folder, "ledger.json")["releases"]
    alone = sum((recompute.squared_mu(row["cost"]) for row in rows), Fraction(0))
    delta = recompute.read(folder, "ledger.json")["spent"]["delta"]
    epsilon = epsilon_of_mu(math.sqrt(alone), delta) * (1 + 1e-9)

    def cheaper(content):
        content["dataset"]["epsilon"] = epsilon
        content["dataset"]["events"] = [
            {"kind": "gaussian", "cost": str(alone), "count": 1, "noise_multiplier": float(alone) ** -0.5}
        ]

    half = edited(folder, tmp_path / "half", "events.json", cheaper)
    whole = edited(half, tmp_path / "whole", "ledger.json", lambda content: content["spent"].update(epsilon=epsilon))
    with pytest.raises(dp.DpscaleError):
        check_bundle(whole)


def test_pure_parts_that_are_said_to_be_smaller_are_found(made, tmp_path):
    def smaller(content):
        content["releases"][0]["cost"]["pure_squares"] = "1/1000000"

    with pytest.raises(dp.DpscaleError):
        check_bundle(edited(made["laplace"], tmp_path / "smaller", "ledger.json", smaller))


def test_a_seeded_run_is_told_not_to_be_private(tmp_path, selftest):
    run = a_run(tmp_path, engine={"scheduler": "synchronous", "seed": 3})
    assert command("evidence", run, "--selftest", selftest)[0] == 0
    code, told, _ = command("evidence", "--check", run / "evidence")
    assert code == 0
    assert "NOT PRIVATE" in told
    assert "NO: the noise follows from a seed" in (run / "evidence" / "checklist.json").read_text()


def test_a_large_strategy_is_packed_and_one_that_is_too_large_known_by_its_columns(tmp_path, monkeypatch):
    run = a_run(tmp_path, "hdmm")
    plain = recompute.read(bundled(run), "strategies.json")["factors"]
    monkeypatch.setattr(draws, "SHOWN", 4)
    packed = recompute.read(bundled(run), "strategies.json")["factors"]
    assert check_bundle(run / "evidence")["by_columns_alone"] == 0
    monkeypatch.setattr(draws, "MOST", 8)
    columns = recompute.read(bundled(run), "strategies.json")["factors"]
    assert check_bundle(run / "evidence")["by_columns_alone"] > 0
    assert any("packed" in one for one in packed.values())
    for key, factor in plain.items():
        assert sensitivities.digest(factor) == sensitivities.digest(packed[key]) == sensitivities.digest(columns[key])
        assert sensitivities.norms(factor) == sensitivities.norms(packed[key]) == sensitivities.norms(columns[key])


# ---- what it must not hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["query-smasher", "aim-grem"])
def test_nothing_in_it_is_private_and_it_tells_no_place(tmp_path, mechanism, monkeypatch):
    place = tmp_path / "a place of ours"
    secrets = []
    with monkeypatch.context() as patch:
        published = measure.publish

        def kept(run, released):
            secrets.append(run.secret_path.read_bytes())
            published(run, released)

        patch.setattr(measure, "publish", kept)
        run = a_run(place, mechanism, {"epsilon": 1.0, "delta": 1e-9})  # the dataset's name is its path
    folder, manifest = bundled(run), Run(run).manifest
    [secret] = secrets
    texts = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, text in texts.items():
        for forbidden in (secret, secret.hex().encode(), b"a place of ours", str(tmp_path).encode(),
                          manifest["snapshot"].encode(), manifest["secret_tag"].encode()):  # fmt: skip
            assert forbidden not in text, name
    assert b"(left out)" in texts["job.toml"]


def test_no_count_of_a_planted_table_is_in_it(tmp_path):
    (tmp_path / "data").mkdir()
    planted_frame().to_parquet(tmp_path / "data" / "0.parquet", index=False)
    domain = {"a": {"kind": "coded", "size": 2}, "city": {"kind": "categories", "values": ["Q", "Z"]}}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    for mechanism in ("query-smasher", "aim-grem"):
        job = {"data": {"path": str(tmp_path / "data"), "domain": str(tmp_path / "domain.toml")},
               "privacy": GAUSSIAN | {"ledger": str(tmp_path / "ledger.sqlite")}, "mechanism": {"name": mechanism},
               "workload": [{"family": "marginal", "degree": 2}]}  # fmt: skip
        folder = bundled(dp.run(job, tmp_path / mechanism).path)
        assert leaks_under([folder]) == {}
        assert check_bundle(folder)["private"]


def test_two_neighbouring_tables_under_one_secret_differ_in_noisy_values_hashes_alone(tmp_path, monkeypatch):
    """A matrix run of a table with a record more: of all files of the bundle only hashes of released files move."""
    import pandas as pd

    engine, folders = {"scheduler": "synchronous", "seed": 3}, []
    for name in ("one", "more"):
        place = tmp_path / name
        write(place)
        if name == "more":
            path = place / "data" / "0.parquet"
            table = pd.read_parquet(path)
            pd.concat([table, table.iloc[:1]]).to_parquet(path, index=False)
        folders.append(bundled(a_run(place, engine=engine)))
    said = [{path.name: json.loads(path.read_text()) for path in folder.glob("*.json")} for folder in folders]
    for name in ("events.json", "strategies.json", "checklist.json"):
        for one in said:
            text = json.dumps(one[name]).replace(one["draws.json"]["release"], "RELEASE")
            one[name] = text
        assert said[0][name] == said[1][name]
    strip = [[{key: value for key, value in draw.items() if key != "file"} for draw in one["draws.json"]["draws"]]
             for one in said]  # fmt: skip
    assert strip[0] == strip[1]


# ---- planted violations, with hashes that fit ------------------------------------------------------------------------


def edited(folder, place, name, change):
    """A copy of a bundle with one file edited and all hashes made to fit."""
    copy = shutil.copytree(folder, place)
    content = json.loads((copy / name).read_text())
    change(content)
    (copy / name).write_bytes(bundle.canonical(content))
    hashes = json.loads((copy / "hashes.json").read_text())
    hashes["files"][name] = hashlib.sha256((copy / name).read_bytes()).hexdigest()
    (copy / "hashes.json").write_bytes(bundle.canonical(hashes))
    return copy


def less_noise(content):
    draw = content["draws"][0]
    draw["variance"] = str(int(int(draw["variance"]) * 0.49))


def smaller_scale(content):
    draw = content["draws"][0]
    draw["laplace"] = str(int(int(draw["laplace"]) * 0.7))


def negative(content):
    content["draws"][0]["variance"] = "7"


def no_selection(content):
    content["selections"][0]["count"] = 0


def set_to(name, value):
    def change(content):
        content["draws"][-1][name] = value

    return change


def louder(content):
    draw = content["draws"][-1]
    draw["multiplier"] = str(2 * int(draw["multiplier"]))


def dropped(content):
    content["draws"].pop()


def doubled(content):
    content["draws"].append(content["draws"][0])


def more_rows(content):
    content["rows_per_unit"] += 1


def cheaper_charge(content):
    row = content["releases"][0]["cost"]
    for name, value in row.items():
        row[name] = str(Fraction(value) * 9 / 10)


def lower_claim(content):
    content["release"]["epsilon"] *= 0.9


def misnamed(content):
    content["release"]["events"][0]["noise_multiplier"] *= 1.01


def lower_total(content):
    content["dataset"]["epsilon"] *= 0.9


def another_release(content):
    content["release"] = "0" * 32


def larger_matrix(content):
    factor = next(one for one in content["factors"].values() if "matrix" in one)
    factor["matrix"][0][0] += 1


def of_another_kind(content):
    factor = next(iter(content["factors"].values()))
    factor["kind"], factor["shape"] = ("center", [9]) if factor["kind"] != "center" else ("identity", [9])
    factor.pop("matrix", None)


PLANTED = [
    ("plan", "draws.json", less_noise), ("plan", "draws.json", set_to("squared_l2", "1")),
    ("plan", "draws.json", louder), ("plan", "draws.json", set_to("factors", [])),
    ("plan", "draws.json", set_to("strategy", "0" * 64)), ("plan", "draws.json", dropped),
    ("plan", "draws.json", negative), ("plan", "draws.json", doubled), ("plan", "draws.json", more_rows),
    ("plan", "draws.json", another_release), ("plan", "ledger.json", cheaper_charge),
    ("plan", "events.json", lower_claim), ("laplace", "events.json", misnamed), ("plan", "events.json", lower_total),
    ("plan", "strategies.json", larger_matrix), ("plan", "strategies.json", of_another_kind),
    ("adaptive", "draws.json", less_noise), ("adaptive", "draws.json", no_selection),
    ("adaptive", "strategies.json", of_another_kind),
    ("adaptive", "ledger.json", cheaper_charge), ("laplace", "draws.json", smaller_scale),
    ("laplace", "draws.json", set_to("l1", "1/2")), ("laplace", "ledger.json", cheaper_charge),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "change"), PLANTED)
def test_what_is_planted_is_found_although_the_hashes_fit(made, tmp_path, kind, name, change):
    copy = edited(made[kind], tmp_path / "bundle", name, change)
    with pytest.raises(JobError, match="evidence: "):
        check_bundle(copy)
    script = subprocess.run([sys.executable, "-I", "-S", copy / "recompute.py"], capture_output=True)
    assert script.returncode == 1


def test_a_charge_and_claims_lowered_together_are_found(made, tmp_path):
    """The ledger, the events that follow from it and the claims all say nine tenths; the draws say otherwise."""
    copy = edited(made["plan"], tmp_path / "one", "ledger.json", cheaper_charge)
    ledger = recompute.read(copy, "ledger.json")
    cost = ledger["releases"][0]["cost"]

    def follow(content):
        content["release"]["cost"] = cost
        event = content["dataset"]["events"][0]
        event |= {"cost": cost["gaussian"], "noise_multiplier": float(Fraction(cost["gaussian"])) ** -0.5}

    with pytest.raises(JobError, match="the draws cost"):
        check_bundle(edited(copy, tmp_path / "two", "events.json", follow))


# ---- bytes and signatures --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed(made, keys, tmp_path_factory):
    """A signed bundle and an unsigned one, to be flipped and restored."""
    place = tmp_path_factory.mktemp("flipped")
    run = a_run(place / "signed")
    from dpscale.audit.evidence.signing import signer

    return bundled(run, signer(keys[0][0])), shutil.copytree(made["plan"], place / "unsigned")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 1), place=st.floats(0, 1, exclude_max=True), name=st.integers(0, 99), flip=st.integers(1, 255)
)
def test_a_byte_flipped_anywhere_is_found(signed, which, place, name, flip):
    files = sorted(signed[which].iterdir())
    path = files[name % len(files)]
    content = path.read_bytes()
    at = int(place * len(content))
    try:
        path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
        with pytest.raises(JobError, match="evidence: "):
            check_bundle(signed[which])
    finally:
        path.write_bytes(content)
    assert check_bundle(signed[which])["sound"]


@pytest.mark.parametrize("name", ["hashes.json", "signature.json"])
def test_every_byte_of_what_no_hash_is_of(signed, name):
    for folder in signed:
        path = folder / name
        if not path.exists():
            continue
        content = path.read_bytes()
        for at in range(len(content)):
            for flip in (0x01, 0x20):
                path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
                with pytest.raises(JobError):
                    check_bundle(folder)
        path.write_bytes(content)


@pytest.mark.parametrize("change", ["cut", "longer", "gone", "more", "folder"])
def test_files_cut_gone_or_put_there_are_found(made, tmp_path, change):
    folder = shutil.copytree(made["plan"], tmp_path / "bundle")
    path = folder / "draws.json"
    changes = {"cut": lambda: path.write_bytes(path.read_bytes()[:-1]),
               "longer": lambda: path.write_bytes(path.read_bytes() + b"\n"), "gone": path.unlink,
               "more": lambda: (folder / "more.txt").write_text(""),
               "folder": lambda: (folder / "more").mkdir()}  # fmt: skip
    changes[change]()
    code, _, told = command("evidence", "--check", folder)
    assert code == 2
    assert told.startswith("dpscale: evidence: ")
    assert told.count("\n") == 1


def test_who_signed_is_told_and_held_against_the_key_that_is_expected(tmp_path, keys, selftest):
    (private, public), (_, another) = keys
    run = a_run(tmp_path)
    assert command("evidence", run, "--selftest", selftest, "--key", private)[0] == 0
    folder = run / "evidence"
    raw = subprocess.run(["openssl", "pkey", "-pubin", "-in", public, "-outform", "DER"], check=True,
                         capture_output=True).stdout[-32:]  # fmt: skip
    code, told, _ = command("evidence", "--check", folder, "--public-key", public)
    assert (code, told.splitlines()[0]) == (0, f"signed by the key {hashlib.sha256(raw).hexdigest()}")
    assert command("evidence", "--check", folder)[0] == 0
    code, _, told = command("evidence", "--check", folder, "--public-key", another)
    assert code == 2
    assert "is signed by another key" in told
    (folder / "signature.json").unlink()
    assert "lacks a signature" in command("evidence", "--check", folder)[2]


def test_openssl_verifies_the_signature_too(tmp_path, keys):
    from dpscale.audit.evidence.signing import signer

    folder = bundled(a_run(tmp_path), signer(keys[0][0]))
    (tmp_path / "signature").write_bytes(bytes.fromhex(recompute.read(folder, "signature.json")["signature"]))
    command_line = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", keys[0][1], "-rawin", "-in",
                    folder / "hashes.json", "-sigfile", tmp_path / "signature"]  # fmt: skip
    assert subprocess.run(command_line, capture_output=True).returncode == 0


def test_an_unsigned_bundle_says_so_and_is_none_where_a_key_is_expected(made, keys):
    code, told, _ = command("evidence", "--check", made["plan"])
    assert (code, told.splitlines()[0]) == (0, "unsigned: anyone may have made it")
    code, _, told = command("evidence", "--check", made["plan"], "--public-key", keys[0][1])
    assert code == 2
    assert "is unsigned, but a public key was given" in told
    assert json.loads(command("evidence", "--check", made["plan"], "--json")[1])["signed_by"] is None


def test_a_bundle_edited_and_signed_by_who_found_it_is_by_another_key(signed, keys, tmp_path):
    from dpscale.audit.evidence.signing import signer

    copy = shutil.copytree(signed[0], tmp_path / "bundle")
    (copy / "README.md").write_text("all is well")
    contents = {
        path.name: path.read_bytes() for path in copy.iterdir() if path.name not in ("hashes.json", "signature.json")
    }
    for name, content in bundle._sealed(contents, signer(keys[1][0])).items():
        (copy / name).write_bytes(content)
    assert check_bundle(copy)["sound"], "consistent in itself"
    with pytest.raises(JobError, match="is signed by another key"):
        check_bundle(copy, keys[0][1])


@pytest.mark.parametrize("content", ["", "no key", None])
def test_what_is_no_key_is_refused_and_nothing_of_it_told(tmp_path, selftest, content):
    run, path = a_run(tmp_path), tmp_path / "key.pem"
    if content is not None:
        path.write_text(content)
    code, _, told = command("evidence", run, "--selftest", selftest, "--key", path)
    assert code == 2
    assert "--key: " in told
    assert not content or content not in told
    assert not (run / "evidence").exists()


def test_a_key_of_another_kind_and_one_with_a_password_are_refused(tmp_path, selftest):
    run, path = a_run(tmp_path), tmp_path / "key.pem"
    for options in (
        ["genpkey", "-algorithm", "ed448"],
        ["genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:x"],
    ):
        subprocess.run(["openssl", *options, "-out", path], check=True)
        assert (
            "contains no such key without a password"
            in command("evidence", run, "--selftest", selftest, "--key", path)[2]
        )


# ---- of which runs ---------------------------------------------------------------------------------------------------


def test_a_bundle_is_made_anew_over_an_older_one(tmp_path, keys):
    from dpscale.audit.evidence.signing import signer

    run = a_run(tmp_path)
    first = {path.name for path in bundled(run, signer(keys[0][0])).iterdir()}
    (run / "evidence" / "left.txt").write_text("of an older version")
    assert {path.name for path in bundled(run).iterdir()} == first - {"signature.json"}
    assert check_bundle(run / "evidence")["sound"]


def test_only_a_measured_run_that_nobody_edited_and_whose_ledger_is_here_has_one(tmp_path, selftest):
    job = write(tmp_path, engine=UNSEEDED)
    command("plan", job, "--run-dir", tmp_path / "run")
    assert "stage measure is not done" in command("evidence", tmp_path / "run", "--selftest", selftest)[2]
    run = dp.run(job, tmp_path / "run").path
    stray = run / "measurements" / ("0" * 32 + ".parquet")
    stray.write_bytes(next(run.glob("measurements/*.parquet")).read_bytes())
    assert "files that stage measure wrote" in command("evidence", run, "--selftest", selftest)[2]
    stray.unlink()
    for path in tmp_path.glob("ledger.sqlite*"):
        path.rename(tmp_path / f"away-{path.name}")
    assert command("evidence", run, "--selftest", selftest)[0] == 3


def test_a_draw_that_no_decision_ordered_is_refused_even_before_its_hash(tmp_path):
    run = Run(a_run(tmp_path))
    stray = run.path / "measurements" / ("0" * 32 + ".parquet")
    stray.write_bytes(next(run.path.glob("measurements/*.parquet")).read_bytes())
    with pytest.raises(JobError, match="belongs to no decision"):
        draws.draws_and_factors(run)
    stray.unlink()
    one, other = sorted(run.path.glob("measurements/*.parquet"))[:2]
    one.write_bytes(other.read_bytes())
    with pytest.raises(JobError, match="a record that differs from the request"):
        draws.draws_and_factors(run)
    one.unlink()
    with pytest.raises(JobError, match="follows a missing file"):
        draws.draws_and_factors(run)


def test_the_self_test_is_run_where_none_is_given_and_what_is_none_is_refused(tmp_path, monkeypatch):
    run, given = a_run(tmp_path), tmp_path / "selftest.json"
    monkeypatch.setattr(
        "dpscale.audit.selftest.selftest", lambda: [("noise", True, "fine"), ("attack", False, "found")]
    )
    assert command("evidence", run)[0] == 0
    code, told, _ = command("evidence", "--check", run / "evidence")
    assert code == 0
    assert "self-test FAILED, according to the bundle" in told
    for text in ("", "[1]", "{}x"):
        given.write_text(text)
        code, _, told = command("evidence", run, "--selftest", given)
        assert code == 2
        assert told.startswith("dpscale: --selftest: ")


def test_a_console_without_greek_shows_it_all_the_same(made):
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin"}
    script = subprocess.run([sys.executable, made["plan"] / "recompute.py"], env=environment, capture_output=True)
    assert (script.returncode, script.stderr) == (0, b"")


def test_it_takes_a_run_or_a_folder_to_check(made):
    assert command("evidence")[0] == 2
    assert command("evidence", made["plan"].parent, "--check", made["plan"])[0] == 2
    assert command("evidence", "--check", made["plan"].parent / "gone")[0] == 2


def test_scripts_of_an_older_version_of_the_same_format_are_known(made, tmp_path, monkeypatch):
    folder = shutil.copytree(made["plan"], tmp_path / "bundle")
    names = check.SCRIPTS["dpscale-evidence/2"]
    (folder / "crosscheck.py").write_text("# an older version\n")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    hashes = json.loads((folder / "hashes.json").read_text())
    hashes["files"] |= digests
    (folder / "hashes.json").write_bytes(bundle.canonical(hashes))
    assert not check_bundle(folder)["own_scripts"]
    shipped = {**check.SHIPPED, "dpscale-evidence/2": (tuple(digests[name] for name in names),)}
    monkeypatch.setattr(check, "SHIPPED", shipped)
    assert check_bundle(folder)["own_scripts"]


def test_shipped_versions_list_a_digest_of_every_script():
    for form, versions in check.SHIPPED.items():
        assert len(set(versions)) == len(versions)
        assert all(len(version) == len(check.SCRIPTS[form]) for version in versions)
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for version in versions for digest in version)
