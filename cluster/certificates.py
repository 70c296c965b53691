"""Certificates for a dedicated Dask cluster: one authority, and a certificate for scheduler, workers and clients.

    python cluster/certificates.py FOLDER --host scheduler.example.org --host 10.0.0.5 --days 365 --at /run/secrets

Dask requires on both sides of every connection a certificate of the authority in `ca-file`, and does not compare host
names: the owner of any certificate of this authority can run code on the cluster. Use an authority for one cluster
only, as this script does. Its key, ca.key, signs new certificates; store it outside the cluster.

The script writes NAME.pem and NAME.key (mode 600), and dask.yaml, which configures Dask: DASK_CONFIG=FOLDER/dask.yaml.
--at is the path of the folder on the machines, if it is different (containers).
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ROLES = ("scheduler", "worker", "client")
CONFIGURATION = """\
# Dask's configuration for TLS; read where DASK_CONFIG names this file. Exact counts are in the workers' memory:
# spilling them to disk is off. So are the pages (tasks, call stacks, logs) that are served as plain HTTP to anybody
# and that --no-dashboard, which is needed all the same, leaves there; /health stays.
distributed:
  comm:
    require-encryption: true
    tls:
      ca-file: {folder}/ca.pem
      scheduler: {{cert: {folder}/scheduler.pem, key: {folder}/scheduler.key}}
      worker: {{cert: {folder}/worker.pem, key: {folder}/worker.key}}
      client: {{cert: {folder}/client.pem, key: {folder}/client.key}}
  scheduler:
    http: {{routes: [distributed.http.health]}}
  worker:
    http: {{routes: [distributed.http.health]}}
    memory: {{target: false, spill: false}}
"""


def make_certificates(folder: Path, hosts: list[str], days: int = 365, at: Path | None = None) -> None:
    """Write an authority and the certificates that it signs; existing files are never overwritten."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("dpscale cluster authority")
    _write(folder, "ca", authority, _self_signed(authority, issuer, days))
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        _write(folder, role, key, _sign(key, role, hosts, authority, issuer, days))
    _create(folder / "dask.yaml", CONFIGURATION.format(folder=at or folder.resolve()).encode(), 0o644)


def _self_signed(key: ec.EllipticCurvePrivateKey, name: x509.Name, days: int) -> x509.Certificate:
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates, no more
    begun = _make_builder(key, name, name, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return begun.add_extension(usage, critical=True).sign(key, hashes.SHA256())


def _sign(
    key: ec.EllipticCurvePrivateKey,
    role: str,
    hosts: list[str],
    authority: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    days: int,
) -> x509.Certificate:
    """Return a certificate for a role: workers and schedulers connect to each other, a client only connects."""
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    begun = _make_builder(key, _name(f"dpscale {role}"), issuer, days)
    if role != "client":
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        begun = begun.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    begun = begun.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    begun = begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return begun.sign(authority, hashes.SHA256())


def _make_builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, days: int
) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - timedelta(minutes=5)  # clocks differ
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(start).not_valid_after(start + timedelta(days=days))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write(folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    _create(folder / f"{name}.key", secret, 0o600)
    _create(folder / f"{name}.pem", certificate.public_bytes(encoding), 0o644)


def _create(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", action="append", help="a name or address of the machines (default: this one only)")
    parser.add_argument("--days", type=int, default=365, help="how long the certificates hold (default 365)")
    parser.add_argument("--at", type=Path, help="the folder as the machines will see it (default: as it is here)")
    given = parser.parse_args()
    try:
        make_certificates(given.folder, given.host or ["localhost", "127.0.0.1", "::1"], given.days, given.at)
    except FileExistsError as error:
        parser.error(f"{error.filename} is there already: choose another folder")
    print(f"export DASK_CONFIG={given.at or given.folder.resolve()}/dask.yaml")


if __name__ == "__main__":
    main()
