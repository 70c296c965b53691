"""What holds for every test.

Each run has a plan store of its own: nothing that was solved before can hide a fault. Hypothesis has no deadline: how
long a thing takes is for benchmarks to say, not for tests.
"""

import os
import tempfile

import pytest
from hypothesis import settings

os.environ["DPSCALE_STORE"] = tempfile.mkdtemp(prefix="dpscale-store-")
settings.register_profile("dpscale", deadline=None)
settings.load_profile("dpscale")


@pytest.fixture
def place(tmp_path):
    """A folder with the small table as three Parquet files."""
    from tests.stages.small import table, write_table

    write_table(tmp_path / "data", table())
    return tmp_path
