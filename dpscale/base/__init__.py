"""Version, lazy modules, errors, representations of values, and the parallel-map protocol; imports no other package."""

from importlib import import_module
from types import ModuleType
from typing import Any

VERSION = "0.2.0"  # of the project; docs/compatibility.md lists the formats of each version


class LazyModule(ModuleType):
    """Module that is imported when one of its attributes is first read."""

    _module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the module itself."""
        if self._module is None:
            self._module = import_module(self.__name__)
        return getattr(self._module, name)
