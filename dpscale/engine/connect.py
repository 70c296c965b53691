"""Connecting to a running scheduler; what can be wrong with its address, its certificates and its workers."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from typing import Any

from dpscale.base.errors import JobError, TransientError
from dpscale.engine.checks import check_versions
from dpscale.engine.watch import no_workers, worker_seconds

SCHEDULER_FIELD = "engine.scheduler"
CONNECT_SECONDS = 20
TLS = "distributed.comm.tls"
HOW = "see cluster/README.md"
ADDRESSES = "tcp://HOST:PORT or tls://HOST:PORT"
ADDRESS = re.compile(r"(?:tcp|tls)://(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^][:/@\s]+)):(?P<port>[0-9]{1,5})")


def connect(address: str, seconds: float, takes: str = ADDRESSES) -> Any:
    """A client of the scheduler at an address. `takes`: what a sentence about a wrong one says may stand there."""
    if not _is_address(address):
        raise JobError(SCHEDULER_FIELD, f"{address!r}", takes, "mend it")
    from distributed import Client  # first: it adds its defaults to Dask's configuration

    _check_encryption(address)
    security = _security() if address.startswith("tls://") else None
    try:
        return Client(address, timeout=seconds, security=security, set_as_default=False)
    except ValueError:
        raise JobError(SCHEDULER_FIELD, f"{address!r}", takes, "mend it") from None
    except (OSError, TimeoutError) as error:
        raise _refused(address, error) from None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of an existing cluster whose workers are fit for use; closed afterwards."""
    client = connect(address, CONNECT_SECONDS)
    try:
        await_worker(client)
        check_versions(client)
        yield client
    finally:
        client.close()


def await_worker(client: Any) -> None:
    """TransientError where no worker comes in time."""
    seconds = worker_seconds()
    try:
        client.wait_for_workers(1, timeout=seconds)
    except TimeoutError:
        raise no_workers(seconds) from None


def _is_address(address: str) -> bool:
    """Whether Dask can try it: it would try for long what is none, and end with a traceback."""
    matched = ADDRESS.fullmatch(address)
    if matched is None or not 0 < int(matched["port"]) < 2**16:
        return False
    try:
        IPv6Address(matched["v6"]) if matched["v6"] else matched["host"].encode("idna")
    except ValueError:
        return False
    return True


def _check_encryption(address: str) -> None:
    import dask

    if address.startswith("tcp://") and dask.config.get("distributed.comm.require-encryption", None):
        raise JobError(SCHEDULER_FIELD, f"{address}, where Dask's configuration says require-encryption", "tls://HOST:PORT",
                       f"use the scheduler's tls address: {HOW}")  # fmt: skip


def _security() -> Any:
    """TLS as Dask is configured, refused here where that is not enough: Dask would say so only in its own words."""
    import dask
    from distributed import Security

    where = {"ca-file": f"{TLS}.ca-file", "cert": f"{TLS}.client.cert", "key": f"{TLS}.client.key"}
    missing = [name for name in where.values() if not dask.config.get(name, None)]
    if missing:
        raise _no_certificates(f"tls:// without {' and '.join(missing)} in Dask's configuration")
    try:
        security = Security()
        security.get_connection_args("client")
    except (OSError, ValueError) as error:
        broken = "unreadable or not of one pair"
        kind = broken if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or broken
        raise _no_certificates(f"the certificates in Dask's configuration cannot be used ({kind})") from None
    return security


def _no_certificates(got: str) -> JobError:
    return JobError(SCHEDULER_FIELD, got, "files of a certificate authority, a client certificate and its key",
                    f"make them by cluster/certificates.py and name them in Dask's configuration: {HOW}")  # fmt: skip


def _refused(address: str, error: BaseException) -> JobError | TransientError:
    if any(isinstance(one, ssl.SSLError) or "SSL" in str(one) for one in _causes(error)):
        return JobError(SCHEDULER_FIELD, f"{address} and this client do not accept each other's certificates",
                        "certificates of one authority for both", f"use those of this cluster: {HOW}")  # fmt: skip
    other = "tls://" if address.startswith("tcp://") else "tcp://"
    return TransientError(
        SCHEDULER_FIELD,
        f"no answer from {address} ({type(error).__name__})",
        "the address of a running Dask scheduler",
        f"start it, or check host and port, and whether it is {other}",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
