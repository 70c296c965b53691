"""Evidence bundles: the draws agree with the charge, and each planted violation or flipped byte is detected."""

import base64
import hashlib
import json
import math
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
from dpscale.audit.evidence import bundle, envelope, recompute, sensitivities
from dpscale.audit.evidence.bundle import Records
from dpscale.audit.evidence.check import check_bundle
from dpscale.audit.evidence.envelope import signer
from dpscale.base.errors import JobError
from dpscale.plans import plan
from dpscale.privacy.conversion import epsilon_of_mu
from dpscale.runs import runner
from dpscale.runs.opening import open_part, open_run
from dpscale.runs.run import ENTRIES
from dpscale.runs.statement import stated_parts
from tests.audit.forging import records_of, reseal, run_script, selections_of
from tests.audit.leaks import leaks_under, planted_frame
from tests.audit.small import write
from tests.messages import refused

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
SOME_KINDS = [  # Laplace noise of one mechanism in the usual tests
    pytest.param(*kind, marks=pytest.mark.slow if kind[1] == PURE and kind[0] != "hdmm" else ()) for kind in KINDS
]


def run_job(place, mechanism="query-smasher", privacy=GAUSSIAN, data=ROW, engine=UNSEEDED, name="run", fresh=False):
    job = write(place, mechanism={"name": mechanism}, privacy=privacy, data=data, engine=engine,
                workload=[{"family": "prefix", "degree": 2}])  # fmt: skip
    return dp.run(job, place / name, fresh=fresh).path


def write_run_bundle(run, key=None):
    return bundle.write_bundle(open_run(run), PASSED, key)


def run_command(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def selftest(tmp_path_factory):
    path = tmp_path_factory.mktemp("selftest") / "selftest.json"
    path.write_text(json.dumps(PASSED))
    return path


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Bundles that tests copy: of a fixed plan, of an adaptive run and of Laplace noise."""
    kinds = {"plan": ("query-smasher", GAUSSIAN), "adaptive": ("aim-grem", GAUSSIAN), "laplace": ("identity", PURE)}
    return {name: write_run_bundle(run_job(tmp_path_factory.mktemp(name), *kind)) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two pairs of PEM files (private, public), made by OpenSSL."""
    place, made = tmp_path_factory.mktemp("keys"), []
    for name in ("curator", "other"):
        private, public = place / f"{name}.pem", place / f"{name}.pub.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
        made.append((private, public))
    return made


# ---- what holds ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mechanism", "privacy"), SOME_KINDS, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("data", [ROW, pytest.param(UNIT, marks=pytest.mark.slow)], ids=["rows", "units"])
def test_bundle_draws_cost_nearly_the_whole_charge(tmp_path, mechanism, privacy, data):
    folder = write_run_bundle(run_job(tmp_path, mechanism, privacy, data))
    found = check_bundle(folder)
    assert found["signed_by"] is None
    assert found["private"]
    assert found["own_scripts"]
    ledger = recompute.read(folder, "ledger.json")
    events, faults = recomputed(folder)
    paid, due = recompute.charged_and_due(ledger["releases"][0]["cost"], events)
    assert not faults
    assert paid * 999 / 1000 < due <= paid
    assert found["release"]["epsilon"] == pytest.approx(privacy["epsilon"], rel=1e-6)
    assert found["release"]["delta"] == privacy.get("delta", 0)


def recomputed(folder):
    """Events of the records of the release's own entry, and faults."""
    files = recompute.read_files(folder)
    spent, faults = sensitivities.check_records(files["records"]["records"], files["parts"],
                                                files["strategies"]["factors"])  # fmt: skip
    return sum((own for (_, entry), own in spent.items() if not entry), sensitivities.Events()), faults


@pytest.mark.parametrize("kind", ["plan", "adaptive", "laplace"])
def test_script_verifies_bundle_with_standard_library_and_dp_accounting(bundles, tmp_path, kind):
    folder = shutil.copytree(bundles[kind], tmp_path / "bundle")
    alone = subprocess.run(
        [sys.executable, "-I", "-S", folder / "recompute.py"], capture_output=True, text=True, cwd="/"
    )
    assert alone.returncode == 0, alone.stderr
    assert "dp-accounting is not installed" in alone.stdout
    assert alone.stdout.endswith("all claims are correct\n")
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"
    pytest.importorskip("dp_accounting")
    with_accounting = subprocess.run([sys.executable, folder / "recompute.py"], capture_output=True, text=True, cwd="/")
    assert (with_accounting.returncode, with_accounting.stderr) == (0, "")
    assert "dp-accounting, PLD" in with_accounting.stdout
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"


def test_dp_accounting_detects_too_low_claim(bundles, tmp_path, capsys):
    pytest.importorskip("dp_accounting")
    for kind, factor in (("plan", 0.99), ("adaptive", 0.95), ("laplace", 0.99)):
        folder = shutil.copytree(bundles[kind], tmp_path / kind)
        files = recompute.read_files(folder)
        honest, events = files["claims"]["release"], recompute.events_of(files)["release"]
        claim = honest | {"epsilon": honest["epsilon"] * factor}
        assert not recompute.account("release", honest, events)[1]
        assert "is claimed" in recompute.account("release", claim, events)[1]


def test_bundle_counts_all_releases_of_the_dataset(tmp_path):
    for number, (mechanism, privacy) in enumerate([("identity", GAUSSIAN), ("identity", PURE), ("hdmm", GAUSSIAN)]):
        run = run_job(tmp_path, mechanism, privacy, name=f"run{number}")
    folder = write_run_bundle(run)
    assert check_bundle(folder)["dataset"]["epsilon"] > check_bundle(folder)["release"]["epsilon"]
    assert len(recompute.read(folder, "ledger.json")["releases"]) == 3
    assert subprocess.run([sys.executable, folder / "recompute.py"], capture_output=True).returncode == 0


def test_group_privacy_is_an_event_of_the_dataset(tmp_path):
    """A release for units of two rows in a dataset that protects rows costs four times its squared μ."""
    run_job(tmp_path, "identity", name="one")
    folder = write_run_bundle(run_job(tmp_path, "identity", data=UNIT, name="two"))
    assert check_bundle(folder)["sound"]
    events = recompute.events_of(recompute.read_files(folder))["dataset"]
    charged = [recompute.squared_mu(row["cost"]) for row in recompute.read(folder, "ledger.json")["releases"]]
    assert float(recompute.total(events, "gaussian")) == pytest.approx(float(charged[0] + 4 * charged[1]), rel=1e-9)


def test_missing_group_privacy_is_detected(tmp_path):
    """The forged ledger and events state the cost of the unit release alone, with matching hashes."""
    run_job(tmp_path, "identity", name="one")
    folder = write_run_bundle(run_job(tmp_path, "identity", data=UNIT, name="two"))
    rows = recompute.read(folder, "ledger.json")["releases"]
    alone = sum((recompute.squared_mu(row["cost"]) for row in rows), Fraction(0))
    delta = recompute.read(folder, "ledger.json")["spent"]["delta"]
    epsilon = epsilon_of_mu(math.sqrt(alone), delta) * (1 + 1e-9)

    def lower_dataset_epsilon(content):
        content["dataset"]["epsilon"] = epsilon

    half = edit_bundle(folder, tmp_path / "half", "claims.json", lower_dataset_epsilon)
    whole = edit_bundle(
        half, tmp_path / "whole", "ledger.json", lambda content: content["spent"].update(epsilon=epsilon)
    )
    with pytest.raises(dp.DpscaleError):
        check_bundle(whole)


def test_reduced_pure_cost_is_detected(bundles, tmp_path):
    def reduce_pure_squares(content):
        content["releases"][0]["cost"]["pure_squares"] = "1/1000000"

    with pytest.raises(dp.DpscaleError):
        check_bundle(edit_bundle(bundles["laplace"], tmp_path / "smaller", "ledger.json", reduce_pure_squares))


def test_seeded_run_is_reported_as_not_private(tmp_path, selftest):
    run = run_job(tmp_path, engine={"scheduler": "synchronous", "seed": 3})
    assert run_command("evidence", run, "--selftest", selftest)[0] == 0
    code, output, _ = run_command("evidence", "--check", run / "evidence")
    assert code == 0
    assert "NOT PRIVATE" in output
    assert "NO: the noise follows from a seed" in (run / "evidence" / "checklist.json").read_text()


def test_large_strategies_are_packed_or_given_by_column_norms(tmp_path, monkeypatch):
    run = run_job(tmp_path, "hdmm")
    plain = recompute.read(write_run_bundle(run), "strategies.json")["factors"]
    monkeypatch.setattr(plan, "SHOWN", 4)
    packed = recompute.read(write_run_bundle(run), "strategies.json")["factors"]
    assert check_bundle(run / "evidence")["by_columns_alone"] == 0
    monkeypatch.setattr(plan, "MOST", 8)
    columns = recompute.read(write_run_bundle(run), "strategies.json")["factors"]
    assert check_bundle(run / "evidence")["by_columns_alone"] > 0
    assert any("packed" in one for one in packed.values())
    for key, factor in plain.items():
        assert sensitivities.digest(factor) == sensitivities.digest(packed[key]) == sensitivities.digest(columns[key])
        assert sensitivities.norms(factor) == sensitivities.norms(packed[key]) == sensitivities.norms(columns[key])


# ---- what it must not hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["query-smasher", "aim-grem"])
def test_bundle_contains_no_secret_and_no_path(tmp_path, mechanism, monkeypatch):
    place = tmp_path / "a place of ours"
    secrets = []
    with monkeypatch.context() as patch:
        published = runner.publish

        def record_secret(run):
            secrets.append(run.secret_path.read_bytes())
            published(run)

        patch.setattr(runner, "publish", record_secret)
        run = run_job(place, mechanism, {"epsilon": 1.0, "delta": 1e-9})  # the dataset's name is its path
    folder, manifest = write_run_bundle(run), open_part(run).manifest
    [secret] = secrets
    texts = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, text in texts.items():
        for forbidden in (secret, secret.hex().encode(), b"a place of ours", str(tmp_path).encode(),
                          manifest["snapshot"].encode(), manifest["secret_tag"].encode()):  # fmt: skip
            assert forbidden not in text, name
    assert b"(left out)" in texts["job.toml"]


def test_bundle_contains_no_count_of_planted_table(tmp_path):
    (tmp_path / "data").mkdir()
    planted_frame().to_parquet(tmp_path / "data" / "0.parquet", index=False)
    domain = {"a": {"kind": "coded", "size": 2}, "city": {"kind": "categories", "values": ["Q", "Z"]}}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    for mechanism in ("query-smasher", "aim-grem"):
        job = {"data": {"path": str(tmp_path / "data"), "domain": str(tmp_path / "domain.toml")},
               "privacy": GAUSSIAN | {"ledger": str(tmp_path / "ledger.sqlite")}, "mechanism": {"name": mechanism},
               "workload": [{"family": "marginal", "degree": 2}]}  # fmt: skip
        folder = write_run_bundle(dp.run(job, tmp_path / mechanism).path)
        assert leaks_under([folder]) == {}
        assert check_bundle(folder)["private"]


def test_bundles_of_neighbouring_tables_differ_in_value_hashes_only(tmp_path, monkeypatch):
    """With one secret and one record more, only the hashes of files with noisy values differ."""
    import pandas as pd

    engine, folders = {"scheduler": "synchronous", "seed": 3}, []
    for name in ("one", "more"):
        place = tmp_path / name
        write(place)
        if name == "more":
            path = place / "data" / "0.parquet"
            table = pd.read_parquet(path)
            pd.concat([table, table.iloc[:1]]).to_parquet(path, index=False)
        folders.append(write_run_bundle(run_job(place, engine=engine)))
    for name in ("claims.json", "strategies.json", "checklist.json", "parts.json", "records.json"):
        texts = [(folder / name).read_text() for folder in folders]
        releases = [recompute.read(folder, "records.json")["release"] for folder in folders]
        one, other = (text.replace(release, "RELEASE") for text, release in zip(texts, releases, strict=True))
        assert one == other


# ---- planted violations, with hashes that fit ------------------------------------------------------------------------


def edit_bundle(folder, place, name, change):
    """Return a copy of a bundle with one edited file and matching hashes."""
    copy = shutil.copytree(folder, place)
    content = json.loads((copy / name).read_text())
    change(content)
    (copy / name).write_bytes(bundle.canonical(content))
    return reseal(copy)


def edit_record(change, last=False):
    """Return an edit of the first or the last draw of records.json."""

    def edit(content):
        change(records_of({"records": content})[-1 if last else 0])

    return edit


@edit_record
def reduce_variance(record):
    record["variance"] = str(int(int(record["variance"]) * 0.49))


@edit_record
def reduce_laplace_scale(record):
    record["laplace"] = str(int(int(record["laplace"]) * 0.7))


@edit_record
def set_small_variance(record):
    record["variance"] = "7"


def remove_selection_count(content):
    selections_of({"records": content})[0]["count"] = 0


def widen_selection(content):
    """State a larger range at the same cost."""
    one = selections_of({"records": content})[0]
    one["range"] = str(Fraction(one["range"]) * 2)


def make_record_edit(name, value):
    return edit_record(lambda record: record.update({name: value}), last=True)


def double_multiplier(content):
    record = records_of({"records": content})[-1]
    record["multiplier"] = str(2 * int(record["multiplier"]))


def drop_draw(content):
    content["records"].remove(records_of({"records": content})[-1])


def repeat_draw(content):
    content["records"].append(records_of({"records": content})[0])


def move_draw(content):
    """Claim that a draw is in the place of another one."""
    records = records_of({"records": content})
    records[-1]["place"] = records[0]["place"]


def state_lower_cost(content):
    record = records_of({"records": content})[0]
    record["cost"] = str(Fraction(record["cost"]) * Fraction(9, 10))


def raise_rows_per_unit(content):
    content["data"]["bounds"]["rows"]["changes"][0][0][1] += 1


def lower_part_cost(content):
    cost = content["data"]["costs"][""]
    content["data"]["costs"][""] = {name: str(Fraction(value) * 9 / 10) for name, value in cost.items()}


def other_cells(content):
    content["data"]["axes"]["a"]["cells"] += 1


def reduce_charge(content):
    row = content["releases"][0]["cost"]
    for name, value in row.items():
        row[name] = str(Fraction(value) * 9 / 10)


def reduce_claimed_epsilon(content):
    content["release"]["epsilon"] *= 0.9


def reduce_dataset_epsilon(content):
    content["dataset"]["epsilon"] *= 0.9


def change_release_id(content):
    content["release"] = "0" * 32


def enlarge_matrix(content):
    factor = next(one for one in content["factors"].values() if "matrix" in one)
    factor["matrix"][0][0] += 1


def change_factor_kind(content):
    factor = next(iter(content["factors"].values()))
    factor["kind"], factor["shape"] = ("center", [9]) if factor["kind"] != "center" else ("identity", [9])
    factor.pop("matrix", None)


PLANTED = [
    ("plan", "records.json", reduce_variance), ("plan", "records.json", make_record_edit("squared_l2", "1")),
    ("plan", "records.json", double_multiplier), ("plan", "records.json", make_record_edit("factors", [])),
    ("plan", "records.json", make_record_edit("strategy", "0" * 64)), ("plan", "records.json", drop_draw),
    ("plan", "records.json", set_small_variance), ("plan", "records.json", repeat_draw),
    ("plan", "records.json", move_draw), ("plan", "records.json", state_lower_cost),
    ("plan", "parts.json", raise_rows_per_unit), ("plan", "parts.json", lower_part_cost),
    ("plan", "parts.json", other_cells), ("plan", "records.json", change_release_id),
    ("plan", "ledger.json", reduce_charge), ("plan", "claims.json", reduce_claimed_epsilon),
    ("laplace", "claims.json", reduce_claimed_epsilon), ("plan", "claims.json", reduce_dataset_epsilon),
    ("plan", "strategies.json", enlarge_matrix), ("plan", "strategies.json", change_factor_kind),
    ("adaptive", "records.json", reduce_variance), ("adaptive", "records.json", remove_selection_count),
    ("adaptive", "records.json", widen_selection),
    ("adaptive", "strategies.json", change_factor_kind), ("adaptive", "ledger.json", reduce_charge),
    ("laplace", "records.json", reduce_laplace_scale), ("laplace", "records.json", make_record_edit("l1", "1/2")),
    ("laplace", "ledger.json", reduce_charge),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "change"), PLANTED)
def test_planted_fault_with_matching_hashes_is_detected(bundles, tmp_path, kind, name, change):
    copy = edit_bundle(bundles[kind], tmp_path / "bundle", name, change)
    with refused(JobError):
        check_bundle(copy)
    assert run_script(copy).returncode == 1


def test_charge_and_claims_reduced_together_are_detected(bundles, tmp_path):
    """The ledger and the claims are reduced to nine tenths, in contradiction to the draws."""
    copy = edit_bundle(bundles["plan"], tmp_path / "one", "ledger.json", reduce_charge)
    ledger = recompute.read(copy, "ledger.json")
    cost = ledger["releases"][0]["cost"]

    def reduce_events(content):
        content["release"]["cost"] = cost

    with refused(JobError):
        check_bundle(edit_bundle(copy, tmp_path / "two", "claims.json", reduce_events))


# ---- bytes and signatures --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed(bundles, keys, tmp_path_factory):
    """A signed and an unsigned bundle, whose bytes tests flip and restore."""
    place = tmp_path_factory.mktemp("flipped")
    run = run_job(place / "signed")
    return write_run_bundle(run, signer(keys[0][0])), shutil.copytree(bundles["plan"], place / "unsigned")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 1), place=st.floats(0, 1, exclude_max=True), name=st.integers(0, 99), flip=st.integers(1, 255)
)
def test_flipped_byte_is_detected(signed, which, place, name, flip):
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


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_flipped_byte_of_envelope_is_detected(signed, which):
    path = signed[which] / "envelope.json"
    content = path.read_bytes()
    try:
        for at in range(0, len(content), 1 if len(content) < 3000 else 7):
            for flip in (0x01, 0x20):
                path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
                with pytest.raises(JobError):
                    check_bundle(signed[which])
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("change", ["cut", "longer", "gone", "more", "folder"])
def test_truncated_missing_or_added_file_is_detected(bundles, tmp_path, change):
    folder = shutil.copytree(bundles["plan"], tmp_path / "bundle")
    path = folder / "records.json"
    changes = {"cut": lambda: path.write_bytes(path.read_bytes()[:-1]),
               "longer": lambda: path.write_bytes(path.read_bytes() + b"\n"), "gone": path.unlink,
               "more": lambda: (folder / "more.txt").write_text(""),
               "folder": lambda: (folder / "more").mkdir()}  # fmt: skip
    changes[change]()
    code, _, output = run_command("evidence", "--check", folder)
    assert code == 2
    assert output.startswith("dpscale: evidence: ")
    assert output.count("\n") == 1


def test_signer_is_reported_and_compared_with_public_key(tmp_path, keys, selftest):
    (private, public), (_, another) = keys
    run = run_job(tmp_path)
    assert run_command("evidence", run, "--selftest", selftest, "--key", private)[0] == 0
    folder = run / "evidence"
    raw = subprocess.run(["openssl", "pkey", "-pubin", "-in", public, "-outform", "DER"], check=True,
                         capture_output=True).stdout[-32:]  # fmt: skip
    code, output, _ = run_command("evidence", "--check", folder, "--public-key", public)
    assert (code, output.splitlines()[0]) == (0, f"signed by the key {hashlib.sha256(raw).hexdigest()}")
    assert run_command("evidence", "--check", folder)[0] == 0
    code, _, output = run_command("evidence", "--check", folder, "--public-key", another)
    assert code == 2
    assert "is signed by another key" in output
    unsigned = recompute.read(folder, "envelope.json") | {"signatures": []}
    (folder / "envelope.json").write_bytes(envelope.canonical(unsigned))
    assert "lacks a signature" in run_command("evidence", "--check", folder)[2]


def test_other_tools_verify_the_envelope(tmp_path, keys):
    """OpenSSL verifies the signature over the encoding of DSSE, which this test writes by the text of its protocol."""
    folder = write_run_bundle(run_job(tmp_path), signer(keys[0][0]))
    whole = json.loads((folder / "envelope.json").read_text())
    payload, kind = base64.b64decode(whole["payload"]), whole["payloadType"]
    assert kind == "application/vnd.in-toto+json"
    encoding = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    (tmp_path / "signed").write_bytes(encoding)
    [signature] = whole["signatures"]
    (tmp_path / "signature").write_bytes(base64.b64decode(signature["sig"]))
    command_line = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", keys[0][1], "-rawin", "-in",
                    tmp_path / "signed", "-sigfile", tmp_path / "signature"]  # fmt: skip
    assert subprocess.run(command_line, capture_output=True).returncode == 0
    (tmp_path / "signed").write_bytes(encoding[:-1] + b" ")
    assert subprocess.run(command_line, capture_output=True).returncode != 0, "planted: another statement"

    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
    hashes = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    there = [path for path in folder.iterdir() if path.name != "envelope.json"]
    assert hashes == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in there}


def test_unsigned_bundle_is_reported_and_refused_with_public_key(bundles, keys):
    code, output, _ = run_command("evidence", "--check", bundles["plan"])
    assert (code, output.splitlines()[0]) == (0, "unsigned: anyone may have made it")
    code, _, output = run_command("evidence", "--check", bundles["plan"], "--public-key", keys[0][1])
    assert code == 2
    assert "is unsigned, but a public key was given" in output
    assert json.loads(run_command("evidence", "--check", bundles["plan"], "--json")[1])["signed_by"] is None


def test_bundle_signed_again_has_another_key(signed, keys, tmp_path):
    copy = shutil.copytree(signed[0], tmp_path / "bundle")
    (copy / "README.md").write_text("all is well")
    reseal(copy, signer(keys[1][0]))
    assert check_bundle(copy)["sound"], "consistent in itself"
    with refused(JobError):
        check_bundle(copy, keys[0][1])


@pytest.mark.parametrize("content", ["", "no key", None])
def test_invalid_key_is_refused_without_printing_it(tmp_path, selftest, content):
    run, path = run_job(tmp_path), tmp_path / "key.pem"
    if content is not None:
        path.write_text(content)
    code, _, output = run_command("evidence", run, "--selftest", selftest, "--key", path)
    assert code == 2
    assert "--key: " in output
    assert not content or content not in output
    assert not (run / "evidence").exists()


def test_other_key_types_and_encrypted_keys_are_refused(tmp_path, selftest):
    run, path = run_job(tmp_path), tmp_path / "key.pem"
    for options in (
        ["genpkey", "-algorithm", "ed448"],
        ["genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:x"],
    ):
        subprocess.run(["openssl", *options, "-out", path], check=True)
        assert (
            "contains no such key without a password"
            in run_command("evidence", run, "--selftest", selftest, "--key", path)[2]
        )


# ---- of which runs ---------------------------------------------------------------------------------------------------


def test_bundle_replaces_older_bundle(tmp_path, keys):
    run = run_job(tmp_path)
    first = {path.name for path in write_run_bundle(run, signer(keys[0][0])).iterdir()}
    (run / "evidence" / "left.txt").write_text("of an older version")
    assert {path.name for path in write_run_bundle(run).iterdir()} == first
    assert check_bundle(run / "evidence")["signed_by"] is None
    assert check_bundle(run / "evidence")["sound"]


def test_bundle_requires_measured_unedited_run_and_ledger(tmp_path, selftest):
    job = write(tmp_path, engine=UNSEEDED)
    run_command("plan", job, "--run-dir", tmp_path / "run")
    assert "stage measure is not done" in run_command("evidence", tmp_path / "run", "--selftest", selftest)[2]
    run = dp.run(job, tmp_path / "run").path
    stray = run / "measurements" / ("0" * 32 + ".parquet")
    stray.write_bytes(next(run.glob("measurements/*.parquet")).read_bytes())
    assert "files that stage measure wrote" in run_command("evidence", run, "--selftest", selftest)[2]
    stray.unlink()
    for path in tmp_path.glob("ledger.sqlite*"):
        path.rename(tmp_path / f"away-{path.name}")
    assert run_command("evidence", run, "--selftest", selftest)[0] == 3


def records_now(run):
    """Return the records of a run."""
    return Records(run, stated_parts(run, ENTRIES)).all()


def test_measurement_without_decision_is_refused(tmp_path):
    run = open_run(run_job(tmp_path))
    stray = run.path / "measurements" / ("0" * 32 + ".parquet")
    stray.write_bytes(next(run.path.glob("measurements/*.parquet")).read_bytes())
    with refused(JobError):
        records_now(run)
    stray.unlink()
    one, other = sorted(run.path.glob("measurements/*.parquet"))[:2]
    one.write_bytes(other.read_bytes())
    with refused(JobError):
        records_now(run)
    one.unlink()
    with refused(JobError):
        records_now(run)


def test_self_test_is_run_by_default_and_invalid_file_is_refused(tmp_path, monkeypatch):
    run, given = run_job(tmp_path), tmp_path / "selftest.json"
    monkeypatch.setenv("DPSCALE_STORE", str(tmp_path / "store"))
    found = iter([[("noise", True, "fine"), ("attack", False, "found")]] * 2)
    monkeypatch.setattr("dpscale.audit.selftest.selftest", lambda *_: next(found))
    for _ in range(2):  # a failed one is not reused
        assert run_command("evidence", run)[0] == 0
    assert next(found, None) is None
    code, output, _ = run_command("evidence", "--check", run / "evidence")
    assert code == 0
    assert "self-test FAILED, according to the bundle" in output
    for text in ("", "[1]", "{}x"):
        given.write_text(text)
        code, _, output = run_command("evidence", run, "--selftest", given)
        assert code == 2
        assert output.startswith("dpscale: --selftest: ")


def test_script_runs_on_ascii_console(bundles):
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin"}
    script = subprocess.run([sys.executable, bundles["plan"] / "recompute.py"], env=environment, capture_output=True)
    assert (script.returncode, script.stderr) == (0, b"")


def test_evidence_requires_run_or_bundle(bundles):
    assert run_command("evidence")[0] == 2
    assert run_command("evidence", bundles["plan"].parent, "--check", bundles["plan"])[0] == 2
    assert run_command("evidence", "--check", bundles["plan"].parent / "gone")[0] == 2


def test_edited_scripts_are_reported(bundles, tmp_path):
    folder = shutil.copytree(bundles["plan"], tmp_path / "bundle")
    (folder / "sensitivities.py").write_text("# edited\n")
    reseal(folder)
    assert not check_bundle(folder)["own_scripts"]


def test_self_test_begins_after_the_ledger_is_read(tmp_path, monkeypatch, selftest):
    """A missing, damaged or foreign ledger is refused before the self-test, which takes half a minute."""
    run, called = run_job(tmp_path), []
    monkeypatch.setenv("DPSCALE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(
        "dpscale.audit.selftest.selftest", lambda progress: called.append(progress) or [("a", True, "")]
    )
    ledger = next(tmp_path.rglob("ledger.sqlite"))
    whole = ledger.read_bytes()
    for content in (None, whole.replace(b"reserved", b"rese\xffved"), whole[:8192] + bytes(4096) + whole[12288:]):
        ledger.unlink() if content is None else ledger.write_bytes(content)
        assert (run_command("evidence", run)[0], called) == (3, []), content is None
        ledger.write_bytes(whole)
    for _ in range(2):
        assert run_command("evidence", run)[0] == 0
        assert len(called) == 1, "a passed self-test is reused for the same installation"
    monkeypatch.setattr("dpscale.runs.manifest.PACKAGES", ())
    for times in (2, 3):  # the command tests again, and its result is that of the bundle
        assert run_command("selftest")[0] == 0
        assert len(called) == times
    assert run_command("evidence", run)[0] == 0
    assert len(called) == 3


def test_empty_self_test_is_refused(tmp_path, bundles):
    (tmp_path / "selftest.json").write_text("[]")
    code, _, said = run_command("evidence", bundles["plan"].parent, "--selftest", tmp_path / "selftest.json")
    assert (code, "has no check" in said) == (2, True)


def test_self_test_shows_its_progress(monkeypatch):
    from dpscale.audit import selftest as audit

    for name in ("_law", "_stability", "_attack", "_planted"):
        monkeypatch.setattr(audit, name, lambda *_: ("a", True, ""))
    shown = []
    checks = audit.selftest(lambda *step: shown.append(step))
    assert shown == [("self-test", done, len(checks)) for done in range(len(checks) + 1)]
