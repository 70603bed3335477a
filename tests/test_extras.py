"""What works without the packages of the extras, and what the errors of the rest say.

Each program runs in a process of its own in which these packages cannot be imported.
"""

from __future__ import annotations

import pytest
from programs import python

from kafkasafe import SafeProducer, packages

_WITHOUT = "import sys\nfor name in ('click', 'matplotlib', 'pyarrow', 'pyspark', 'rich', 'typer'): sys.modules[name] = None\n"


def run(program):
    return python("-c", _WITHOUT + program)


def printed(program):
    done = run(program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_producers_and_consumers_need_no_extra(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders")
    servers = fake_kafka.bootstrap_servers
    out = printed(f"""
import asyncio
from kafkasafe import SafeConsumer, SafeProducer, aio
for options in ({{}}, {{"compression_type": "gzip"}}, {{"spool": "never"}}):
    directory = {{}} if "spool" in options else {{"spool_dir": {str(tmp_path)!r}}}
    with SafeProducer(bootstrap_servers={servers!r}, **directory, **options) as producer:
        with producer.batch() as batch:
            for number in range(50):
                batch.send("orders", b"%d" % number, key=b"key")
        producer.send("orders", b"alone").get(timeout=60)
async def one():
    async with aio.SafeProducer(bootstrap_servers={servers!r}, spool_dir={str(tmp_path)!r}) as producer:
        await producer.send_and_wait("orders", b"awaited")
    async with aio.SafeConsumer("orders", bootstrap_servers={servers!r}, auto_offset_reset="earliest") as consumer:
        return (await consumer.getone()).value
assert asyncio.run(one()) == b"0"
options = dict(bootstrap_servers={servers!r}, auto_offset_reset="earliest", consumer_timeout_ms=5000)
consumer = SafeConsumer("orders", **options)
found = [record.value for record, _ in zip(consumer, range(3 * 51 + 1))]
consumer.close()
print(len(found), found[-1].decode())
""")
    assert out.split() == [str(3 * 51 + 1), "awaited"]


@pytest.mark.parametrize("kind", ["snappy", "lz4", "zstd"])
def test_compression_without_pyarrow_is_refused_before_a_file_is_opened(tmp_path, kind):
    done = run(f"""
from kafkasafe import SafeProducer
from kafkasafe.errors import ConfigError
try:
    SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir={str(tmp_path / "spool")!r}, compression_type={kind!r})
except ConfigError as error:
    print(error)
""")
    assert done.stdout.strip() == (
        f"compression_type='{kind}' needs pyarrow: pip install 'kafkasafe[arrow]'; compression_type='gzip' needs no"
        " other package"
    )
    assert not (tmp_path / "spool").exists()


def test_a_consumer_without_codecs_raises_as_kafka_consumer_does_and_keeps_its_position(fake_kafka, tmp_path):
    """kafka-python has packages of its own for the codecs. Without these, too, both clients raise the same error.

    Later polls of KafkaConsumer return nothing, without an error. Those of SafeConsumer raise it again.
    """
    fake_kafka.create_topic("orders")
    servers = fake_kafka.bootstrap_servers
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path, compression_type="zstd") as producer:
        producer.send("orders", b"one" * 100).get(timeout=60)
    out = printed(f"""
for name in ("zstandard", "lz4", "snappy", "lz4framed"): sys.modules[name] = None
from kafka import KafkaConsumer
from kafkasafe import SafeConsumer
for kind, polls in ((SafeConsumer, 2), (KafkaConsumer, 1)):
    consumer = kind("orders", bootstrap_servers={servers!r}, auto_offset_reset="earliest")
    for _ in range(polls):
        try:
            while not consumer.poll(timeout_ms=1000): pass
        except Exception as error:
            print(error)
    print(*[consumer.position(partition) for partition in consumer.assignment()])
    consumer.close()
""").splitlines()
    assert "codec not found" in out[0]
    assert out == [out[0], out[0], "0", out[0], "0"]


def test_decompression_without_pyarrow_names_the_extra_once():
    done = run("""
from kafkasafe.record.batch.compression import decompress
from kafkasafe.record.batch.header import Compression
decompress(b"any", Compression.ZSTD, 1000)
""")
    assert done.stderr.splitlines()[-1] == (
        "kafkasafe.packages.MissingPackageError: Compression with snappy, lz4 or zstd needs pyarrow:"
        " pip install 'kafkasafe[arrow]'"
    )
    assert done.stderr.count("MissingPackageError: ") == 1
    assert "During handling of the above exception" not in done.stderr


def test_arrow_tables_name_the_extra(fake_kafka):
    fake_kafka.create_topic("orders")
    out = printed(f"""
from kafkasafe import SafeConsumer
from kafkasafe.errors import UsageError
consumer = SafeConsumer("orders", bootstrap_servers={fake_kafka.bootstrap_servers!r})
for method in (consumer.poll_arrow, consumer.poll_batches):
    try:
        method()
    except UsageError as error:
        print(error)
consumer.close()
for name in ("kafkasafe.audit", "kafkasafe.spark.reading"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
""").splitlines()
    assert out == [
        "poll_arrow needs pyarrow: pip install 'kafkasafe[arrow]'",
        "poll_batches needs pyarrow: pip install 'kafkasafe[arrow]'",
        "An Arrow table needs pyarrow: pip install 'kafkasafe[arrow]'",
        "An Arrow table needs pyarrow: pip install 'kafkasafe[arrow]'",
    ]


def test_the_command_names_the_extra():
    done = run("import runpy\nrunpy.run_module('kafkasafe', run_name='__main__')")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kafkasafe: the command line needs ")
    assert done.stderr.endswith(": pip install 'kafkasafe[cli]'\n")


def test_commands_without_pyarrow(tmp_path):
    with SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path / "spool") as producer:
        producer.send("orders", b"one").durable(timeout=60)
        producer.close(timeout=0)
    without = "import sys\nsys.modules['pyarrow'] = None\nfrom kafkasafe.__main__ import main\n"
    ran = []
    for arguments in (["ls"], ["export", "-o", "-"], ["export", "-o", str(tmp_path / "new.parquet")]):
        command = ["kafkasafe", "spool", arguments[0], str(tmp_path / "spool"), *arguments[1:]]
        program = f"{without}sys.argv = {command!r}\nmain()"
        ran.append(python("-c", program))
    listed, lines, parquet = ran
    assert (listed.returncode, lines.returncode) == (0, 0), (listed.stderr, lines.stderr)
    assert '"value": "one"' in lines.stdout
    assert (parquet.returncode, parquet.stderr) == (
        3,
        "kafkasafe: A Parquet file needs pyarrow: pip install 'kafkasafe[arrow]'\n",
    )
    assert not (tmp_path / "new.parquet").exists()


def test_pyarrow_is_returned_where_it_is_installed():
    assert packages.pyarrow_for("A test").Table
