"""Redaction of errors: texts of other libraries may contain counts and values, so only the error type leaves a task."""

import errno
import pickle
import traceback

import numpy as np
import pyarrow as pa
import pytest

from dpscale import DataError, InternalError, TransientError
from dpscale.base.display import nearest
from dpscale.base.error_redaction import discreetly, no_memory
from dpscale.base.errors import Unreadable
from dpscale.engine.schedulers import resolve
from dpscale.engine.watch import RedactedCall
from tests.audit.leaks import leaks_in
from tests.messages import refused
from tests.selection import mostly_slow

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
def test_foreign_error_keeps_type_and_place_without_text(name, scheduler):
    with pytest.raises(KINDS[name]) as caught:
        resolve(scheduler=scheduler).map(fail, [name], "map")
    text = "".join(traceback.format_exception(caught.value))
    assert leaks_in(text.encode()) == []
    assert "in fail" in text
    assert caught.value.__context__ is None


def test_own_errors_keep_their_text():
    with refused(DataError):
        resolve(scheduler="synchronous").map(refuse, ["x"], "map")


WAYS = {"whole": None, "parts": [range(1), range(1, 2)]}


def refuse_some(number):
    if number % 3 == 1:
        raise DataError(f"data column {number!r}", "a value outside the domain")
    return [np.full(2, number), np.full(3, number)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scheduler", mostly_slow(["synchronous", "threads", "processes"], {"processes"}))
@pytest.mark.parametrize("numbers", [[1, 4, 0, 2], [2, 4, 0, 1], [0] * 20 + [4] + [3] * 20 + [1]])
@pytest.mark.parametrize("way", ["map", *WAYS])
def test_first_refusal_in_order_is_reported_on_every_scheduler(scheduler, numbers, way):
    engine = resolve(scheduler=scheduler)
    items = [(number,) for number in numbers]
    with refused(DataError):
        engine.map(refuse_some, items) if way == "map" else engine.reduce(refuse_some, items, 2, pieces=WAYS[way])


def test_refusal_is_returned_as_opaque_result():
    refused = RedactedCall(refuse_some)(1)
    assert repr(refused) == "result"
    assert refused.error.__traceback__ is None
    assert RedactedCall(len)(pickle.loads(pickle.dumps(refused))).error.field == "data column 1"


def test_unreadable_file_error_passes_redaction():
    def raise_unreadable():
        raise Unreadable("data.path", "x.parquet cannot be read")

    with pytest.raises(Unreadable):
        RedactedCall(raise_unreadable)()


SHORT_OF_MEMORY = [
    MemoryError("31337"),
    OSError(errno.ENOMEM, "31337"),
    RuntimeError("can't start new thread"),
    OSError("Memory mapping file failed: Cannot allocate memory 31337"),
    pa.ArrowException("Unknown error: Failed to launch worker thread: 31337"),
]


@pytest.mark.parametrize("error", SHORT_OF_MEMORY)
def test_out_of_memory_text_is_equal_in_task_and_driver(error):
    def raise_error():
        raise error

    for call in (RedactedCall(raise_error), lambda: discreetly("stage measure", raise_error)):
        with pytest.raises(TransientError) as caught:
            call()
        assert str(caught.value) == str(no_memory())
        assert caught.value.__context__ is None


def test_driver_error_is_reported_by_type_and_place():
    def raise_type_error():
        return nearest("age", [31337, "sex"])

    with pytest.raises(InternalError) as caught:
        discreetly("stage measure", raise_type_error)
    assert str(caught.value).startswith("engine: stage measure failed with TypeError at dpscale/base/display.py:")
    assert "31337" not in "".join(traceback.format_exception(caught.value))


def test_redacted_call_can_be_pickled_and_keeps_name():
    assert repr(pickle.loads(pickle.dumps(RedactedCall(refuse)))) == "refuse"
