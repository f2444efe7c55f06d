"""Kafka's jars: fetched once with Maven, kept in the user's cache, used from there without a network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from paceline.testing.servers.build_cache import build_tool, cache_path, obtain, run_build
from paceline.testing.servers.failures import ServerUnavailable

POM = Path(__file__).with_name("pom.xml")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_WITHIN = 600.0
JAVA_AT_LEAST = 17


def cache_directory() -> Path:
    """Where the jars of this pom lie, or will; another pom has another directory."""
    return cache_path(f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}")


def jar_directory() -> Path:
    """The directory with the jars; fetches them if need be. One process fetches, the others wait for it."""
    return obtain(cache_directory(), _fetch)


def check_obtainable() -> None:
    """Raises `ServerUnavailable` if the jars are neither cached nor can be fetched."""
    if not cache_directory().is_dir():
        _maven()


def _maven() -> str:
    return build_tool("mvn", "Kafka's jars are not in the cache and there is no Maven (mvn) to fetch them")


def _fetch(scratch: Path, jars: Path) -> None:
    shutil.copy(POM, scratch)
    command = [_maven(), "-B", "-q", COPY, f"-DoutputDirectory={jars}"]
    run_build("Maven", command, scratch, aim="fetch Kafka's jars", timeout=FETCH_WITHIN)


def first_start_directory() -> Path:
    """Where the first start with these jars and this Java leaves what later ones use."""
    version = hashlib.sha256(installed_java()[1].encode()).hexdigest()[:12]
    return cache_directory().with_suffix(f".{version}")


def java() -> str:
    """The path of a Java that is new enough."""
    return installed_java()[0]


@cache
def installed_java() -> tuple[str, str]:
    """The path of Java, and its version text."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        raise ServerUnavailable(f"there is no Java (java, {JAVA_AT_LEAST} or newer)")
    output = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < JAVA_AT_LEAST:
        raise ServerUnavailable(f"Java {JAVA_AT_LEAST} or newer is needed; {program} says: {output.strip()}")
    return program, output
