"""Rows of Snowflake and BigQuery through the drivers of ADBC.

The classes are tested with the driver of PostgreSQL; they have not been tried on the warehouses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from dpscale.base.arrow import pa
from dpscale.base.errors import DataError, JobError
from dpscale.records.databases import CHANGED, MOST_GROUPS, WORD, Connection, Range, RangeContent, gathered, row_hash
from dpscale.storage.databases import FIELD, DatabaseAddress


class WarehouseConnection(Connection):
    """Connection to a warehouse through its ADBC driver.

    Hashes are computed here. A reading is one statement: it has all columns in the order of their values, and its
    content and order are compared at its end, before counts of it are used.
    """

    place = ""

    def __init__(self, address: DatabaseAddress, uri: str) -> None:
        super().__init__(address)
        self.open = self.connect(uri)

    @abstractmethod
    def connect(self, uri: str) -> Any:
        """Return an open connection of the driver."""

    @cached_property
    def schema(self) -> pa.Schema:
        with self.open.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.rows} LIMIT 0")
            return cursor.fetch_record_batch().schema

    def ask(self, sql: str) -> tuple[Any, ...]:
        with self.open.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchone())

    def answer(self, sql: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self.open.cursor() as cursor:
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()

    def groups(self, sets: Sequence[tuple[str, ...]], part: Range) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
        raise JobError("engine.count_in_database", "true, and a warehouse, whose statements have no common transaction",
                       "PostgreSQL, DuckDB or SQLite", "leave it out")  # fmt: skip

    def content(self, part: Range) -> RangeContent:
        """Return the content of a range, from hashes of all its rows that are computed here."""
        sums = RowSums()
        for batch in self.read(self.schema.names, part, MOST_GROUPS):
            sums.add(batch)
        return sums.content

    def has_content(self, part: Range, content: RangeContent) -> bool:
        return self.content(part) == content

    def read(self, columns: Sequence[str], part: Range, rows: int) -> Iterator[pa.RecordBatch]:
        names, order = (", ".join(map(self.quoted_name, own)) for own in (columns, self.schema.names))
        sql = f"SELECT {names} FROM {self.rows}{self.condition(part)} ORDER BY {order}"
        yield from gathered(self.answer(sql, columns), rows)

    def checked(
        self, columns: Sequence[str], part: Range, rows: int, expected: RangeContent | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of columns; after the last, refuse rows whose sums of hashes are not the expected ones."""
        sums = RowSums()
        for batch in self.read(self.schema.names, part, rows):
            sums.add(batch)
            yield batch.select(list(columns))
        if expected is not None and sums.content != expected:
            raise DataError(FIELD, *CHANGED)

    def close(self) -> None:
        self.open.close()


class RowSums:
    """Sums of the hashes of rows, in any order, and a sum with their places.

    Texts that a collation compares as equal may come in another order at each reading, and the rows that a bound
    leaves out are known by their places.
    """

    def __init__(self) -> None:
        self.content = RangeContent(0, (0, 0), 0)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch.

        The hash of a row has two 64-bit words. Their sums do not depend on the order of rows; the sum of the second
        word times an odd number of the place does.
        """
        hashes = [divmod(row_hash(row), WORD) for row in zip(*batch.to_pydict().values(), strict=True)]
        first, second = (sum(words) % WORD for words in zip((0, 0), *hashes, strict=True))
        known = self.content
        places = sum(low * (2 * place + 1) for place, (_, low) in enumerate(hashes, known.rows))
        words = (known.words[0] + first) % WORD, (known.words[1] + second) % WORD
        self.content = RangeContent(known.rows + len(batch), words, (known.places + places) % WORD)


class SnowflakeConnection(WarehouseConnection):
    """Connection to Snowflake, whose address is that of its driver: USER:PASSWORD@ACCOUNT/DATABASE/SCHEMA."""

    def connect(self, uri: str) -> Any:
        from adbc_driver_snowflake.dbapi import connect

        return connect(uri.partition("://")[2])


class BigQueryConnection(WarehouseConnection):
    """Connection to a data set of BigQuery, PROJECT/DATASET, with the credentials of the environment."""

    def quoted_name(self, name: str) -> str:
        return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"

    def connect(self, uri: str) -> Any:
        """Connect to the project and data set in the address."""
        from adbc_driver_bigquery.dbapi import connect

        project, _, dataset = uri.partition("://")[2].partition("/")
        return connect(db_kwargs={"adbc.bigquery.sql.project_id": project, "adbc.bigquery.sql.dataset_id": dataset})
