"""Draws and answers of frozen runs stay the same."""

import json

import numpy as np
import pytest

from tests.golden.runs import CASES, PARTITIONS, STORED, draw_records, read_figures, run_case


@pytest.mark.sampled(3)
@pytest.mark.parametrize("partitions", PARTITIONS)
@pytest.mark.parametrize("case", CASES)
def test_frozen_run_gives_stored_draws_and_answers(case, partitions, tmp_path):
    """Records and integers are equal exactly; estimates to 1e-9, because the last bits of solvers depend on the
    processor.
    """
    folder = run_case(case, partitions, tmp_path)
    assert draw_records(folder) == json.loads((STORED / case / "draws.json").read_text())[str(partitions)]
    found, frozen = read_figures(folder), np.load(STORED / case / f"figures-{partitions}.npz")
    assert set(found) == set(frozen.files)
    for name, values in found.items():
        scale = np.abs(frozen[name][np.isfinite(frozen[name])]).max(initial=1)
        np.testing.assert_allclose(values, frozen[name], rtol=1e-9, atol=1e-9 * scale, err_msg=name)
