"""What is drawn and answered stays what it was, whatever becomes of the house."""

import json

import numpy as np
import pytest

from tests.golden.runs import CASES, PARTITIONS, STORED, draws, figures, run


@pytest.mark.parametrize("partitions", PARTITIONS)
@pytest.mark.parametrize("case", CASES)
def test_a_frozen_run_draws_and_answers_what_it_did(case, partitions, tmp_path):
    """Records and integers exactly; estimates to 1e-9, since solvers' last bits differ by processor."""
    folder = run(case, partitions, tmp_path)
    assert draws(folder) == json.loads((STORED / case / "draws.json").read_text())[str(partitions)]
    found, frozen = figures(folder), np.load(STORED / case / f"figures-{partitions}.npz")
    assert set(found) == set(frozen.files)
    for name, values in found.items():
        scale = np.abs(frozen[name][np.isfinite(frozen[name])]).max(initial=1)
        np.testing.assert_allclose(values, frozen[name], rtol=1e-9, atol=1e-9 * scale, err_msg=name)
