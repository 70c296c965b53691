"""The only room that knows Dask: which scheduler runs, and how a map or a counting pass becomes tasks.

Rooms of mathematics take a function `each(function, items)`; this room makes one from threads, processes, the calling
thread or a cluster. Results are the same bytes on each.
"""

from dpscale.engine.schedulers import ClusterEngine, Engine, LocalEngine, resolve

__all__ = ["ClusterEngine", "Engine", "LocalEngine", "resolve"]
