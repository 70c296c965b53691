"""Connection to a running scheduler, and checks of its address and its certificates."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from ipaddress import IPv6Address
from threading import Thread
from typing import TYPE_CHECKING

from dpscale.base.errors import JobError, TransientError
from dpscale.engine.watch import NOTICE_SECONDS, awaited

if TYPE_CHECKING:
    from distributed import Client, Security

SCHEDULER_FIELD = "engine.scheduler"
CONNECT_SECONDS = 20
TLS = "distributed.comm.tls"
CLUSTER_DOCS = "see cluster/README.md#several-machines-with-tls"
ADDRESSES = "tcp://HOST:PORT or tls://HOST:PORT"
ADDRESS = re.compile(r"(?:tcp|tls)://(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^][:/@\s]+)):(?P<port>[0-9]{1,5})")


def connect(
    address: str, seconds: float, expected: str = ADDRESSES, notice: Callable[[], None] = lambda: None
) -> Client:
    """Return a client of the scheduler at an address; `expected` describes the accepted values in an error message.

    `notice` is called every NOTICE_SECONDS of waiting.
    """
    if not _is_address(address):
        raise JobError(SCHEDULER_FIELD, f"{address!r}", expected, "fix it")

    from distributed import Client  # imported first: it adds its defaults to Dask's configuration

    _check_encryption(address)
    security = _security() if address.startswith("tls://") else None
    try:
        return _limited(partial(Client, address, timeout=seconds, security=security, set_as_default=False),
                        seconds + NOTICE_SECONDS, notice)  # fmt: skip
    except ValueError:
        raise JobError(SCHEDULER_FIELD, f"{address!r}", expected, "fix it") from None
    except (OSError, TimeoutError) as error:
        raise _connection_error(address, error) from None


def _limited(connecting: Callable[[], Client], seconds: float, notice: Callable[[], None]) -> Client:
    """Return the result of a call in a thread, because Dask waits without limit for the greeting of a scheduler."""
    made: Future[Client] = Future()

    def run() -> None:
        try:
            made.set_result(connecting())
        except BaseException as error:
            made.set_exception(error)

    Thread(target=run, daemon=True).start()
    return awaited(made, seconds, notice)


def _is_address(address: str) -> bool:
    """Return whether Dask accepts the address; for an invalid one it would retry for long and end with a traceback."""
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
        raise JobError(SCHEDULER_FIELD, f"{address}, but Dask's configuration requires encryption",
                       "tls://HOST:PORT", f"use the TLS address of the scheduler: {CLUSTER_DOCS}")  # fmt: skip


def _security() -> Security:
    """Return the TLS settings of Dask's configuration; raise JobError if they are incomplete or unusable."""
    import dask
    from distributed import Security

    where = {"ca-file": f"{TLS}.ca-file", "cert": f"{TLS}.client.cert", "key": f"{TLS}.client.key"}
    missing = [name for name in where.values() if not dask.config.get(name, None)]
    if missing:
        raise _certificate_error(f"tls:// without {' and '.join(missing)} in Dask's configuration")

    try:
        security = Security()
        security.get_connection_args("client")
    except (OSError, ValueError) as error:
        broken = "unreadable or not a matching pair"
        kind = broken if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or broken
        raise _certificate_error(f"the certificates in Dask's configuration cannot be used ({kind})") from None

    return security


def _certificate_error(got: str) -> JobError:
    return JobError(SCHEDULER_FIELD, got, "files of a certificate authority, a client certificate and its key",
                    "create them and set them in Dask's configuration: "
                    f"{CLUSTER_DOCS}")  # fmt: skip


def _connection_error(address: str, error: BaseException) -> JobError | TransientError:
    if any(isinstance(one, ssl.SSLError) or "SSL" in str(one) for one in _causes(error)):
        return JobError(SCHEDULER_FIELD, f"{address} and this client do not accept each other's certificates",
                        "certificates of one authority for both",
                        f"use the certificates of this cluster: {CLUSTER_DOCS}")  # fmt: skip

    other = "tls://" if address.startswith("tcp://") else "tcp://"
    return TransientError(
        SCHEDULER_FIELD,
        f"no answer from {address} ({type(error).__name__})",
        "the address of a running Dask scheduler",
        f"start it, or check host and port, or try {other}",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
