import pytest

from tests.stages.small import table, write_table


@pytest.fixture
def place(tmp_path):
    """A folder with the small table as three Parquet files."""
    write_table(tmp_path / "data", table())
    return tmp_path
