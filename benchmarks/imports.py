"""Measures imports and `kafkasafe --help` as users run them: from an installed wheel, with bytecode.

    python benchmarks/imports.py [--rounds 9] [--checkout DIR ...] [--environment DIR]

The benchmark builds a wheel of this code, and a wheel of each DIR. pip installs and compiles the wheels. All wheels use
the dependencies in one clean environment. The benchmark creates this environment in a temporary directory, or in the
directory of --environment if this directory does not exist yet. In each round, every statement runs once with every
wheel, in its own process. The benchmark prints the lowest CPU time and the lowest elapsed time of all rounds, the
memory afterwards, and the number of modules.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
FLOOR = {
    "Python alone": "pass",
    "import kafka": "import kafka",
    "import numpy": "import numpy",
    "import confluent_kafka": "import confluent_kafka",
}
OURS = {
    "import kafkasafe": "import kafkasafe",
    "from kafkasafe import SafeProducer": "from kafkasafe import SafeProducer",
    "from kafkasafe import SafeConsumer": "from kafkasafe import SafeConsumer",
    "kafkasafe --help": "from kafkasafe.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
}
MEASURED = """
import sys, time
began = time.perf_counter()
try:
    exec(sys.argv[1])
except ImportError:
    sys.exit(0)
took = time.perf_counter() - began
for line in open("/proc/self/status"):
    if line.startswith("VmRSS:"):
        rss = int(line.split()[1]) / 1024
print(took, rss, len(sys.modules), file=sys.stderr)
"""


def measured(python: Path, statement: str, path: Path | None) -> tuple[float, ...] | None:
    """Returns the CPU time of the process (ms), the time of the statement (ms), resident memory (MB), and modules."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [python, "-c", MEASURED, statement],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not done.stderr:
        return None
    took, rss, modules = map(float, done.stderr.split())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu * 1000, took * 1000, rss, modules


def installed(python: Path, checkout: Path, directory: Path) -> Path:
    """Returns the directory into which pip has installed the wheel of a checkout."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels, target = directory / "wheels", directory / "installed"
    subprocess.run([*pip, "wheel", "--no-deps", "-w", wheels, checkout], env=environment, check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", f"{wheel}[arrow,cli]", "confluent-kafka"], env=environment, check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], env=environment, check=True)
    subprocess.run([*pip, "uninstall", "--yes", "kafkasafe"], env=environment, check=True)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--checkout", type=Path, action="append", default=[], help="another checkout to compare"
    )
    parser.add_argument(
        "--environment", type=Path, help="directory for the environment with the dependencies"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="imports-") as work:
        environment = options.environment or Path(work, "environment")
        if not environment.exists():
            venv.create(environment, with_pip=True)
        python = environment.resolve() / "bin" / "python"
        cases: list[tuple[str, str, str, Path | None]] = [("", *case, None) for case in FLOOR.items()]
        for number, checkout in enumerate((HERE, *options.checkout)):
            target = installed(python, checkout.resolve(), Path(work, str(number)))
            cases += [(checkout.resolve().name, *case, target) for case in OURS.items()]
        found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
        for _ in range(options.rounds):
            for code, name, statement, path in cases:
                values = measured(python, statement, path)
                if values is not None:
                    found.setdefault((name, code), []).append(values)
    print(f"least of {options.rounds}; {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    print(f"{'':36}{'':12}{'CPU ms':>8}{'ms':>8}{'MB':>8}{'modules':>9}")
    for (name, code), values in sorted(found.items(), key=lambda each: [*FLOOR, *OURS].index(each[0][0])):
        cpu, took, rss, modules = map(min, zip(*values, strict=True))
        print(f"{name:36}{code:12}{cpu:8.0f}{took:8.0f}{rss:8.0f}{modules:9.0f}")


if __name__ == "__main__":
    main()
