"""Faults of dpscale's code are internal errors; failures of clusters and disks are transient."""

import pytest

from dpscale.base.error_redaction import RedactedCall, discreetly
from dpscale.base.errors import InternalError, TransientError
from dpscale.base.numerics import serial_map
from tests.messages import refused


def fault(kind):
    """Return a function of dpscale that raises an exception of its own code."""

    def raising(_):
        raise kind("a value of a record")

    return lambda: list(serial_map(raising, [1]))


@pytest.mark.parametrize("kind", [IndexError, KeyError, TypeError, AttributeError])
@pytest.mark.parametrize("call", [lambda one: discreetly("a stage", one), lambda one: RedactedCall(one)()])
def test_fault_of_the_code_is_internal(kind, call):
    with pytest.raises(InternalError) as caught:
        call(fault(kind))
    assert caught.value.exit_code == 70
    assert "report this" in str(caught.value)
    assert "a value of a record" not in str(caught.value)
    assert "again" not in str(caught.value)


def test_fault_of_a_cluster_is_transient(tmp_path, monkeypatch):
    """The same exception from below, in the code of the cluster, may be gone the next time."""
    import importlib.util

    (tmp_path / "distributed").mkdir()
    path = tmp_path / "distributed/core.py"
    path.write_text("def lost(_):\n    raise KeyError('worker')\n")
    spec = importlib.util.spec_from_file_location("core", path)
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    with refused(TransientError):
        discreetly("a stage", lambda: list(serial_map(core.lost, [1])))


def test_full_disk_stays_transient():
    with pytest.raises(TransientError):
        discreetly("a stage", lambda: (_ for _ in ()).throw(OSError(28, "full")))
