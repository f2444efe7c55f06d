"""The SMSC simulator of jsmpp, a widely used implementation of SMPP in Java: an SMSC that nobody here has written."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.testing.servers.build_cache import build_tool, cache_path, obtain, run_build
from paceline.testing.servers.kafka.jars import COPY, FETCH_WITHIN, java

POM = Path(__file__).with_name("jsmpp.pom.xml")
SIMULATOR = "org.jsmpp.examples.SMPPServerSimulator"


def _jars() -> Path:
    name = f"jsmpp-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    return obtain(cache_path(name), _fetch)


def _fetch(scratch: Path, jars: Path) -> None:
    maven = build_tool("mvn", "jsmpp's jars are not in the cache and there is no Maven (mvn) to fetch them")
    shutil.copy(POM, scratch / "pom.xml")
    command = [maven, "-B", "-q", COPY, f"-DoutputDirectory={jars}"]
    run_build("Maven", command, scratch, aim="fetch jsmpp's jars", timeout=FETCH_WITHIN)


@contextmanager
def simulator(log: Path) -> Iterator[str]:
    """Its URL, for the account `j` with the password `jpwd`. It logs the texts that it receives, reports each message
    as delivered after a second, by a decimal number for its hexadecimal id, and greets each client that binds by a
    message of a short code.

    Raises:
        ServerUnavailable: There is no Java or no Maven.
    """
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    options = ["-Xmx64m", f"-Djsmpp.simulator.port={port}", "-cp", f"{_jars()}/*"]
    with log.open("w") as output:
        process = subprocess.Popen([java(), *options, SIMULATOR], stdout=output, stderr=subprocess.STDOUT)
        try:
            yield f"smpp://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)
