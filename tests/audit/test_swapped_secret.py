"""A secret that is replaced during its stage draws nothing, because its draws could be repeated under the first
secret.
"""

import json
import shutil

import pytest

import dpscale as dp
from dpscale.privacy.streams import new_secret
from dpscale.runs import charge as charging, runner
from tests.audit.small import measurements, write


@pytest.mark.parametrize("name", ["residual-planner", "aim-grem"])
def test_replaced_secret_draws_nothing(tmp_path, monkeypatch, name):
    """Noise drawn under another secret, deleted and drawn again under the first would be two draws for one charge."""
    job = write(tmp_path, mechanism={"name": name}, engine={"scheduler": "synchronous"})
    key, real, first = tmp_path / "run" / "secret.key", charging.charge, []

    def charge(run, entry="privacy", reserve=True):
        state = real(run, entry, reserve)
        if reserve and not first:
            first.append(key.read_bytes())
            key.write_bytes(new_secret())
        return state

    with monkeypatch.context() as patched:
        patched.setattr(charging, "charge", charge)
        patched.setattr(runner, "publish", lambda run: 1 / 0)  # killed before the end
        with pytest.raises((dp.DpscaleError, ZeroDivisionError)):
            dp.run(job, tmp_path / "run")
    assert first
    seen = measurements(tmp_path / "run")
    seals = [json.loads(path.read_text())["seal"] for path in (tmp_path / "run/measurements").glob("round-*.json")]
    shutil.rmtree(tmp_path / "run" / "measurements", ignore_errors=True)
    key.write_bytes(first[0])
    dp.run(job, tmp_path / "run")
    again = measurements(tmp_path / "run")
    assert not [one for one in seen if one in again and seen[one] != again[one]]
    assert None not in seals
