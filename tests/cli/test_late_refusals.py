"""Invalid settings are refused in one sentence, before any charge."""

import pytest

import dpscale as dp
from tests.audit.small import write
from tests.messages import refused

WRONG = [
    {"mechanism": {"name": "hdmm", "seed": -1}},
    {"engine": {"scheduler": "synchronous", "memory": "..B"}},
    {"privacy": {"rho": 1.7e308, "dataset": "small"}},
    {"privacy": {"epsilon": 1.0, "delta": 1e-320, "dataset": "small"}},
    {"privacy": {"epsilon": 1.7e308, "dataset": "small"}},
]


@pytest.mark.parametrize("changes", WRONG)
def test_invalid_setting_is_refused_without_charge(tmp_path, changes):
    """Regression test of five settings that failed late in earlier versions."""
    with pytest.raises(dp.DpscaleError):
        dp.run(write(tmp_path, **changes), tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize("other", [{"rounds": 3}, {"degree": 2}])
def test_option_together_with_published_is_refused_by_name(tmp_path, other):
    with refused(dp.JobError):
        dp.run(write(tmp_path, mechanism={"name": "aim-grem", "published": True} | other), tmp_path / "run")
