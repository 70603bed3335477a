"""The README's programs run as they stand, in order, for a user who may write in the working directory only."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
NOBODY = 65534
UNPRIVILEGED = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    # The code may lie in a home directory of root; a user's own installation would be readable.
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
)


def programs():
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def prefix():
    return UNPRIVILEGED if os.getuid() == 0 and sys.platform == "linux" else ()


@pytest.fixture
def directory(tmp_path):
    if prefix():
        os.chown(tmp_path, NOBODY, NOBODY)
    return tmp_path


def run(program, directory, **more):
    return subprocess.run(
        [*prefix(), sys.executable, "-c", program],
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "PYTHONPATH": str(README.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


@pytest.mark.real
def test_its_user_may_write_nowhere_else(directory):
    if not prefix():
        pytest.skip("this user has no more rights than the README's")
    done = run("open('/var/lib/kafkasafe-readme', 'w')", directory)
    assert "PermissionError" in done.stderr


@pytest.mark.real
def test_all_programs_run_as_they_stand_one_after_the_other(directory, fake_kafka):
    fake_kafka.create_topic("orders", partitions=1)
    blocks = programs()
    assert len(blocks) >= 2
    # One program, as somebody would paste them into one session.
    program = "".join(blocks).replace("localhost:9092", fake_kafka.bootstrap_servers[0])
    done = run(program, directory)
    assert done.returncode == 0, done.stderr
    assert "orders 0 0\n" in done.stdout
    assert "[b'{\"order\": 1}']" in done.stdout
    assert [path.name for path in directory.iterdir() if not path.name.startswith(".")] == ["spool"]
