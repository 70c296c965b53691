"""Which engine runs: the one place that resolves `client`, `scheduler` and the ambient client."""

from __future__ import annotations

import sys
from typing import Any

from dpscale.base.errors import JobError
from dpscale.engine.base import Engine, Progress, silent
from dpscale.engine.cluster import ClusterEngine
from dpscale.engine.graphs import FAN_IN
from dpscale.engine.local import LOCAL, LocalEngine

__all__ = ["FAN_IN", "LOCAL", "ClusterEngine", "Engine", "LocalEngine", "Progress", "resolve", "silent"]


def resolve(client: Any = None, scheduler: str | None = None, progress: Progress = silent, priority: int = 0) -> Engine:
    """The engine: `client`, else `scheduler`, else the ambient `distributed` client, else threads.

    Inside a task of a cluster the ambient client is the worker's. Every cluster's workers are held against this
    process's versions, so that a wrong one is refused before anything is read or spent.
    """
    if client is not None:
        return _checked(ClusterEngine(_opened(client), progress, priority=priority))
    if scheduler in LOCAL:
        return LocalEngine(scheduler or "threads", progress=progress)
    if scheduler is not None:
        from dpscale.engine.connect import ADDRESSES, CONNECT_SECONDS, connect

        connected = connect(scheduler, CONNECT_SECONDS, takes=f"{', '.join(LOCAL)}, {ADDRESSES}")
        return _checked(ClusterEngine(connected, progress, owned=True, priority=priority))
    ambient = _ambient_client()
    if ambient is None:
        return LocalEngine(progress=progress)
    return _checked(ClusterEngine(_opened(ambient), progress, priority=priority))


def _checked(engine: ClusterEngine) -> ClusterEngine:
    try:
        engine.check_workers()
    except BaseException:
        engine.close()
        raise
    return engine


def _opened(client: Any) -> Any:
    """The client that a caller gave, or that is ambient; JobError where it is none that can be used."""
    from distributed import Client

    takes, remedy = "an open distributed.Client", "open one, or give scheduler= the address"
    if not isinstance(client, Client):
        raise JobError("client", f"a {type(client).__name__}", takes, remedy)
    if client.status == "closed":
        raise JobError("client", "a closed client", takes, remedy)
    if client.asynchronous:
        raise JobError("client", "an asynchronous client", f"{takes} that is not asynchronous",
                       "open one, give scheduler=, or call this in a thread (asyncio.to_thread)")  # fmt: skip
    return client


def _ambient_client() -> Any:
    """The client at hand, where Dask is in use at all; one that is closed does not count."""
    if "distributed" not in sys.modules:
        return None
    from distributed import get_client

    try:
        client = get_client()
    except ValueError:
        return None
    return None if client.status == "closed" else client
