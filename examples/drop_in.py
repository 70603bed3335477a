"""A program written for KafkaProducer: only the import has changed. `durable()` returns once the record is on disk.

python examples/drop_in.py                                # starts a Kafka of its own
python examples/drop_in.py --bootstrap localhost:9092     # or uses yours
"""

import argparse
import contextlib
import json
import os
import tempfile

from kafka import KafkaConsumer, TopicPartition

# from kafka import KafkaProducer
from kafkasafe import SafeProducer as KafkaProducer


def produce(servers: list[str], topic: str, count: int) -> None:
    # Records wait in the user's state directory, unless spool_dir= or KAFKASAFE_SPOOL_DIR names another one.
    producer = KafkaProducer(
        bootstrap_servers=servers,
        client_id="drop-in",
        key_serializer=str.encode,
        value_serializer=lambda order: json.dumps(order).encode(),
    )
    for number in range(count):
        future = producer.send(topic, {"order": number, "total": 9.99}, key=f"customer-{number % 7}")
    # New: from here on, no crash of this process, the machine or the brokers loses the record.
    future.durable(timeout=10)
    # As with kafka-python: wait for the cluster's acknowledgement.
    metadata = future.get(timeout=30)
    print(f"order {count - 1} is {metadata.topic}-{metadata.partition} @ {metadata.offset}")
    producer.flush()
    producer.close()


def count_records(servers: list[str], topic: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=servers)
    try:
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        ends, starts = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
        return sum(ends[tp] - starts[tp] for tp in partitions)
    finally:
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts one")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    if options.count < 1:
        parser.error("--count must be 1 or more")
    with contextlib.ExitStack() as stack:
        if options.bootstrap:
            servers = options.bootstrap.split(",")
        else:
            from kafkasafe.testing.broker import KafkaCluster

            # This cluster exists for a minute only, so its records should not wait in the user's state directory.
            os.environ.setdefault("KAFKASAFE_SPOOL_DIR", stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = stack.enter_context(KafkaCluster(brokers=1))
            cluster.create_topic(options.topic, partitions=3)
            servers = cluster.bootstrap_servers
        produce(servers, options.topic, options.count)
        print(f"{options.topic} holds {count_records(servers, options.topic)} records")


if __name__ == "__main__":
    main()
