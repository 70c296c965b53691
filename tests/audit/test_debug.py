"""Unexpected errors of dpscale are not reported as damaged files, and only DPSCALE_DEBUG=1 shows their cause."""

import csv
import errno
import pickle
import traceback

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.error_redaction import RedactedCall, discreetly
from dpscale.engine.schedulers import resolve
from dpscale.records import encode, parquet
from dpscale.records.formats import reading
from tests.messages import refused
from tests.runs.small import write_job

SECRET = "secret 918273"
OURS = [
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowKeyError,
    pa.ArrowIndexError,
    pa.ArrowCapacityError,
]
OF_ANOTHER_PLACE = [pa.ArrowInvalid, OSError, csv.Error]
HINT = "set DPSCALE_DEBUG=1 to see the cause (its output is private)"


def make_failing(kind):
    def fail(*_, **__):
        raise kind(SECRET)

    return fail


@pytest.fixture
def file(tmp_path):
    pd.DataFrame({"a": ["0", "1"] * 9}).to_parquet(tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


@pytest.fixture
def debug(monkeypatch):
    monkeypatch.setenv("DPSCALE_DEBUG", "1")


def count_file(file):
    domain = dp.Domain.from_dict({"attributes": {"a": {"kind": "categories", "values": ["0", "1"]}}})
    return dp.count_marginals(dp.Table.open(file, domain), [("a",)])


def assert_redacted(error, kind, place):
    own_fault = issubclass(kind, IndexError | KeyError | TypeError)
    assert type(error) is (dp.InternalError if own_fault else dp.TransientError)
    assert f"failed with {kind.__name__} at dpscale/{place}:" in str(error)
    assert str(error).endswith(HINT)
    assert "remove" not in str(error)
    assert (error.__cause__, error.__context__) == (None, None)
    assert "secret" not in "".join(traceback.format_exception(error)) + repr(error) + str(pickle.dumps(error))


@pytest.mark.parametrize("kind", OURS)
def test_pyarrow_misuse_in_reader_is_not_reported_as_damage(file, monkeypatch, kind):
    monkeypatch.setattr(parquet, "small", make_failing(kind))
    with pytest.raises(dp.DpscaleError) as caught:
        dp.Table.open(file, dp.Domain({"a": 2})).partitions[0].columns()
    assert_redacted(caught.value, kind, "records/parquet/__init__.py")
    with pytest.raises(dp.DpscaleError) as caught:
        count_file(file)
    assert_redacted(caught.value, kind, "records/parquet/__init__.py")


@pytest.mark.parametrize("kind", OURS + OF_ANOTHER_PLACE)
def test_error_outside_decoding_is_not_reported_as_damage(file, monkeypatch, kind):
    monkeypatch.setattr(encode, "_places", make_failing(kind))
    with pytest.raises(dp.DpscaleError) as caught:
        count_file(file)
    assert_redacted(caught.value, kind, "records/encode.py")


def test_system_error_is_reported_by_reason():
    with pytest.raises(dp.DataError) as caught, reading("x.parquet"):
        raise OSError(errno.EMFILE, SECRET)
    assert "x.parquet cannot be read (Too many open files)" in str(caught.value)
    assert "remove" not in str(caught.value)
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    with (
        refused(dp.TransientError),
        reading("x.parquet"),
    ):
        raise FileNotFoundError(errno.ENOENT, SECRET, "another file")


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.csv"])
def test_damaged_file_is_reported_as_damage(tmp_path, name, debug):
    frame, file = pd.DataFrame({"a": ["0", "1"] * 999}), tmp_path / name
    if name == "x.csv":
        file.write_text("a,b\n0,1\n0,1,1\n")
    else:
        frame.to_parquet(file) if name == "x.parquet" else feather.write_feather(frame, file)
        file.write_bytes(file.read_bytes()[:-20])
    with refused(dp.DataError) as caught:
        count_file(file)
    assert caught.value.__cause__ is not None


def test_cause_is_chained_in_debug_mode(file, monkeypatch, debug):
    monkeypatch.setattr(parquet, "small", make_failing(pa.ArrowTypeError))
    with refused(dp.InternalError) as caught:
        count_file(file)
    assert isinstance(caught.value.__cause__, pa.ArrowTypeError)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET in shown
    assert "This output is PRIVATE" in shown
    assert HINT not in str(caught.value)


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_other_values_of_debug_variable_hide_cause(monkeypatch, value):
    monkeypatch.setenv("DPSCALE_DEBUG", value)
    for call in (RedactedCall(make_failing(ValueError)), lambda: discreetly("work", make_failing(ValueError))):
        with pytest.raises(dp.TransientError) as caught:
            call()
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)
        assert str(caught.value).endswith(HINT)


def raise_in_process(_):
    raise ValueError(SECRET)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
@pytest.mark.parametrize("debug_mode", [True, False])
def test_workers_send_cause_only_in_debug_mode(scheduler, debug_mode, monkeypatch):
    monkeypatch.setenv("DPSCALE_DEBUG", "1" if debug_mode else "0")
    with pytest.raises(dp.TransientError) as caught:
        resolve(scheduler=scheduler).map(raise_in_process, ["x"])
    assert (SECRET in "".join(traceback.format_exception(caught.value))) == debug_mode
    assert (caught.value.__cause__ is not None) == debug_mode


def test_command_shows_cause_and_warns_in_debug_mode(place, monkeypatch):
    monkeypatch.setattr(parquet, "small", make_failing(pa.ArrowTypeError))
    call = ["run", str(write_job(place)), "--run-dir", str(place / "run"), "--quiet"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 70
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.output
    assert result.stderr.endswith(f"{HINT}; more: docs/reference/job-file.md, engine\n")
    monkeypatch.setenv("DPSCALE_DEBUG", "1")
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 70
    assert result.stderr.startswith("dpscale: DPSCALE_DEBUG is set: ")
    assert "This output is PRIVATE" in result.stderr
    assert f"ArrowTypeError: {SECRET}" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("dpscale: engine: reading ")
