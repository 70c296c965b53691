"""What other libraries say of an error may hold counts and values of records: only its kind leaves a task."""

import errno
import pickle
import traceback

import pytest

from dpscale import DataError, TransientError
from dpscale.engine import resolve
from dpscale.engine.discretion import Discreet
from tests.audit.leaks import leaks_in

ERRORS = {
    "numpy": MemoryError("Unable to allocate 60.5 KiB for an array with shape (2, 31337) and data type uint8"),
    "arrow": ValueError("Float value 987654321 was truncated converting to int64"),
    "disk": OSError(errno.ENOSPC, "31337 bytes"),
    "bare": OSError("987654321"),
}
KINDS = {"numpy": TransientError, "arrow": TransientError, "disk": TransientError, "bare": TransientError}


def fail(name):
    raise ERRORS[name]


def refuse(name):
    raise DataError("data column 'a'", "a value outside the domain")


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("name", ERRORS)
def test_a_strange_error_keeps_its_kind_and_place_and_loses_its_text(name, scheduler):
    with pytest.raises(KINDS[name]) as caught:
        resolve(scheduler=scheduler).map(fail, [name], "map")
    told = "".join(traceback.format_exception(caught.value))
    assert leaks_in(told.encode()) == []
    assert "in fail" in told
    assert caught.value.__context__ is None


def test_our_own_errors_pass_as_they_are():
    with pytest.raises(DataError, match="outside the domain"):
        resolve(scheduler="synchronous").map(refuse, ["x"], "map")


def test_a_discreet_function_travels_and_keeps_its_name():
    assert repr(pickle.loads(pickle.dumps(Discreet(refuse)))) == "refuse"
