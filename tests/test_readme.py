"""The README's programs run as they stand, in order, for a user who may write in the working directory only."""

import pytest
import reader

README = reader.ROOT / "README.md"


@pytest.fixture
def directory(tmp_path):
    return reader.give(tmp_path)


@pytest.mark.real
def test_its_user_may_write_nowhere_else(directory):
    if not reader.prefix():
        pytest.skip("this user has no more rights than the README's")
    done = reader.run("open('/var/lib/kafkasafe-readme', 'w')", directory)
    assert "PermissionError" in done.stderr


@pytest.mark.real
def test_all_programs_run_as_they_stand_one_after_the_other(directory, fake_kafka):
    fake_kafka.create_topic("orders", partitions=1)
    blocks = reader.programs(README)
    assert len(blocks) >= 2
    # One program, as a reader would paste them into one session.
    program = "".join(blocks).replace("localhost:9092", fake_kafka.bootstrap_servers[0])
    done = reader.run(program, directory)
    assert done.returncode == 0, done.stderr
    assert "orders 0 0\n" in done.stdout
    assert "[b'{\"order\": 1}']" in done.stdout
    assert [path.name for path in directory.iterdir() if not path.name.startswith(".")] == ["spool"]
