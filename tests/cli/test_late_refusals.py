"""What is refused is refused in one sentence, before anything is spent."""

import pytest

import dpscale as dp
from tests.audit.small import write

WRONG = [
    {"mechanism": {"name": "hdmm", "seed": -1}},
    {"engine": {"scheduler": "synchronous", "memory": "..B"}},
    {"privacy": {"rho": 1.7e308, "dataset": "small"}},
    {"privacy": {"epsilon": 1.0, "delta": 1e-320, "dataset": "small"}},
    {"privacy": {"epsilon": 1.7e308, "dataset": "small"}},
]


@pytest.mark.parametrize("changes", WRONG)
def test_a_wrong_setting_is_refused_before_anything_is_spent(tmp_path, changes):
    """These five went wrong before the house was rebuilt as well."""
    with pytest.raises(dp.DpscaleError):
        dp.run(write(tmp_path, **changes), tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize("other", [{"ones": 0.3}, {"degree": 2}])
def test_options_beside_published_are_refused_by_their_own_name(tmp_path, other):
    [name] = other
    said = (
        rf"^mechanism\.{name}: given together with published = true; expected the paper's own settings; leave it out$"
    )
    with pytest.raises(dp.JobError, match=said):
        dp.run(write(tmp_path, mechanism={"name": "aim-grem", "published": True} | other), tmp_path / "run")
