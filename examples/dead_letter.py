"""The cluster rejects a record, which goes to a dead-letter handler. All other records arrive.

python examples/dead_letter.py                                # starts a Kafka of its own
python examples/dead_letter.py --bootstrap localhost:9092     # or uses yours
"""

import argparse
import base64
import contextlib
import json
import tempfile
import uuid
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from kafkasafe import SafeProducer
from kafkasafe.errors import RejectedError


class DeadLetters:
    """Appends rejected records to a file of JSON lines. Must be quick: the producer's own thread calls it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *, topic, partition, key, value, headers, timestamp_ms, error) -> None:
        line = {
            "topic": topic,
            "partition": partition,
            "key": key and key.decode(),
            "value": value and base64.b64encode(value).decode(),
            "headers": [[name, base64.b64encode(content).decode()] for name, content in headers],
            "timestamp_ms": int(timestamp_ms),
            "error": str(error),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def run(servers: list[str], directory: Path) -> None:
    topic = f"small-records-{uuid.uuid4().hex[:6]}"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "10000"})])
    admin.close()
    letters = DeadLetters(directory / "dead-letters.jsonl")
    with SafeProducer(
        bootstrap_servers=servers, spool_dir=directory / "spool", on_rejected=letters
    ) as producer:
        before = [producer.send(topic, b"small", key=b"%d" % i) for i in range(10)]
        large = producer.send(topic, b"x" * 50_000, key=b"large", headers=[("from", b"example")])
        after = [producer.send(topic, b"small", key=b"%d" % i) for i in range(10, 20)]
        try:
            large.get(timeout=30)
        except RejectedError as error:
            print(f"rejected: {error}")
        else:
            raise AssertionError("A record larger than max.message.bytes was accepted")
        offsets = [future.get(timeout=30).offset for future in before + after]
    assert offsets == list(range(20)), offsets
    print(f"the 20 others are in {topic}, in order")
    for line in letters.path.read_text().splitlines():
        letter = json.loads(line)
        print(f"dead letter: key {letter['key']!r}, {len(base64.b64decode(letter['value']))} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts one")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.bootstrap:
            servers = options.bootstrap.split(",")
        else:
            from kafkasafe.testing.broker import KafkaCluster

            servers = stack.enter_context(KafkaCluster(brokers=1)).bootstrap_servers
        run(servers, directory)


if __name__ == "__main__":
    main()
