"""Modules of Arrow that are imported at their first use.

Importing pyarrow takes a quarter of a second. Planning, `--help` and `import dpscale` do not need it, so modules that read
or write records import these names instead of pyarrow. Their attributes are those of the module of the same name.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq
    import pyarrow.types as types

__all__ = ["arrow_csv", "pa", "pc", "pq", "types"]


class LazyModule(ModuleType):
    """Module that is imported when one of its attributes is first read."""

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the module itself."""
        return getattr(import_module(self.__name__), name)


if not TYPE_CHECKING:
    pa, pc, pq = LazyModule("pyarrow"), LazyModule("pyarrow.compute"), LazyModule("pyarrow.parquet")
    arrow_csv, types = LazyModule("pyarrow.csv"), LazyModule("pyarrow.types")
