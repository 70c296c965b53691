"""Path of the real data (../shared/data beside the repository), and a mark that skips tests without them."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"

needs_real_data = pytest.mark.skipif(not DATA.exists(), reason="../shared/data is absent: real data does not travel")
