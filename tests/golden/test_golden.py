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
    processor; simulated errors to 1e-5.
    """
    folder = run_case(case, partitions, tmp_path)
    assert draw_records(folder) == json.loads((STORED / case / "draws.json").read_text())[str(partitions)]
    found, frozen = read_figures(folder), np.load(STORED / case / f"figures-{partitions}.npz")
    assert set(found) == set(frozen.files)
    for name, values in found.items():
        scale = np.abs(frozen[name][np.isfinite(frozen[name])]).max(initial=1)
        np.testing.assert_allclose(values[0], frozen[name][0], rtol=1e-9, atol=1e-9 * scale, err_msg=name)
        near = 1e-5 if case == "aim-grem" and "/" in name else 1e-9  # its errors are in single precision
        np.testing.assert_allclose(values, frozen[name], rtol=near, atol=near * scale, err_msg=name)
