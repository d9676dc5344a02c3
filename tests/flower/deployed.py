"""A real Flower deployment on loopback: SuperLink and two SuperNodes with TLS, stopped whatever happens."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def write_certificates(folder: Path) -> None:
    """ca.pem, and server.pem with server.key for 127.0.0.1, valid for a day."""
    now = dt.datetime.now(dt.UTC)

    def certificate(name: str, issuer: str, issuer_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey):  # type: ignore[no-untyped-def]
        common = x509.oid.NameOID.COMMON_NAME
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(common, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(common, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
                ),
                critical=False,
            )
            .sign(issuer_key, hashes.SHA256())
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(certificate("test CA", "test CA", ca_key, ca_key).public_bytes(pem))
    (folder / "server.pem").write_bytes(certificate("localhost", "test CA", ca_key, key).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(private)


@dataclass(frozen=True)
class Deployment:
    folder: Path
    environment: dict[str, str]

    def run(self, app: Path, *settings: str, seconds: float = 240) -> str:
        """`flwr run` to its end; returns what it printed."""
        command = [BIN / "flwr", "run", app, "deployed", "--stream"]
        for setting in settings:
            command += ["-c", setting]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout + done.stderr

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))


@contextmanager
def deployment(folder: Path, nodes: int = 2) -> Iterator[Deployment]:
    write_certificates(folder)
    port = free_port()
    home = folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "deployed"\n[superlink.deployed]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{folder / "ca.pem"}"\n'
    )
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    tls = [f"--ssl-certfile={folder}/server.pem", f"--ssl-keyfile={folder}/server.key"]
    tls.append(f"--ssl-ca-certfile={folder}/ca.pem")
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [BIN / arguments[0], *arguments[1:]],
                    cwd=folder,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    try:
        start("superlink", "flower-superlink", "--host=127.0.0.1", f"--port={port}", *tls)
        wait_until_healthy(f"https://127.0.0.1:{port}/health", folder / "ca.pem", started[0])
        for index in range(nodes):
            start(
                f"supernode{index}",
                "flower-supernode",
                f"--superlink=127.0.0.1:{port}",
                f"--root-certificates={folder}/ca.pem",
                "--host=127.0.0.1",
                f"--port={free_port()}",
                *tls,
                f"--node-config=partition-id={index} num-partitions={nodes}",
            )
        yield Deployment(folder, environment)
    finally:
        for process in reversed(started):
            stop(process)


def wait_until_healthy(address: str, ca: Path, process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    context = ssl.create_default_context(cafile=str(ca))
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=2, context=context):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise TimeoutError(f"{address} did not answer within {seconds} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """The process and the children it started, which share its session."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
    process.wait(10)
