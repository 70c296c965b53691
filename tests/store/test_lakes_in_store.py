"""Objects of a Delta, Iceberg or Hudi table are refused at every prefix unless their format is stated."""

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.records.files import Dialect
from tests.messages import refused

DOMAIN = dp.Domain(x={"kind": "coded", "size": 2})
MARKS = {"delta": "_delta_log/0.json", "iceberg": "metadata/v1.metadata.json", "hudi": ".hoodie/hoodie.properties"}


@pytest.mark.parametrize("kind", MARKS)
def test_objects_of_a_table_with_a_log_are_refused(store, kind):
    root = f"{store}/lakes/{kind}"
    with fsspec.open(f"{root}/data/year=2024/part.parquet", "wb") as file:
        pq.write_table(pa.table({"x": [0, 1]}), file)
    with fsspec.open(f"{root}/{MARKS[kind]}", "wb") as file:
        file.write(b"{}")
    for path in (root, f"{root}/", f"{root}/data", f"{root}/data/year=2024", f"{root}/data/year=2024/part.parquet",
                 f"{root}/data/*/*.parquet"):  # fmt: skip
        with refused(dp.DataError):
            dp.Table.open(path, DOMAIN)
    stated = dp.Table.open(f"{root}/data", DOMAIN, dialect=Dialect(format="parquet"))
    assert dp.count_marginals(stated, [("x",)])["x",].tolist() == [1, 1]


def test_other_prefixes_of_a_store_are_read(store):
    for name in ("plain/a.parquet", "plain/metadata/readme.parquet"):
        with fsspec.open(f"{store}/{name}", "wb") as file:
            pq.write_table(pa.table({"x": [0, 1]}), file)
    assert dp.count_marginals(dp.Table.open(f"{store}/plain/a.parquet", DOMAIN), [("x",)])["x",].tolist() == [1, 1]
