"""The cluster fails, the application continues, the process dies, and every record arrives once and in order.

python examples/outage.py                                           # starts, and kills, a Kafka of its own
python examples/outage.py --bootstrap localhost:9092 --seconds 60   # yours: stop and start it meanwhile
"""

import argparse
import subprocess
import sys
import tempfile
import time

from kafka import KafkaConsumer, TopicPartition

from kafkasafe import SafeProducer

TOPIC = "measurements"

# This process ends without close(), as in a power cut: os._exit runs no cleanup.
SHORT_LIFE = """
import os, sys
from kafkasafe import SafeProducer
producer = SafeProducer(bootstrap_servers=sys.argv[1].split(","), spool_dir=sys.argv[2])
for number in range(int(sys.argv[3]), int(sys.argv[4])):
    producer.send("measurements", b"%d" % number)
producer.durable(10)
print("a second process accepted", int(sys.argv[4]) - int(sys.argv[3]), "more; now it dies")
sys.stdout.flush()
os._exit(9)
"""


def read(servers: list[str], topic: str) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        numbers: list[int] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=500).values():
                numbers += [int(record.value) for record in records]
        return numbers
    finally:
        consumer.close()


def own_cluster() -> None:
    from kafkasafe.testing.broker import KafkaCluster

    with KafkaCluster(brokers=1) as cluster, tempfile.TemporaryDirectory() as spool:
        servers = cluster.bootstrap_servers
        cluster.create_topic(TOPIC)
        with SafeProducer(bootstrap_servers=servers, spool_dir=spool) as producer:
            for number in range(1000):
                producer.send(TOPIC, b"%d" % number)
            producer.flush()
            print("1000 records are acknowledged; kill -9 of the broker")
            cluster.kill(1)
            for number in range(1000, 2000):
                producer.send(TOPIC, b"%d" % number)
            producer.durable()
            print("1000 more were accepted without a broker, and are on disk")
            producer.close(timeout=1)
        command = [sys.executable, "-c", SHORT_LIFE, ",".join(servers), spool, "2000", "3000"]
        code = subprocess.run(command, check=False, timeout=60).returncode
        assert code == 9, code
        cluster.start(1)
        print("the broker is back; a third process takes over the spool")
        with SafeProducer(bootstrap_servers=servers, spool_dir=spool) as producer:
            producer.send(TOPIC, b"3000")
            producer.flush(60)
        numbers = read(servers, TOPIC)
        assert numbers == list(range(3001)), (len(numbers), numbers[:10])
        print(f"the topic holds {len(numbers)} records: each once, in order")


def own_hands(servers: list[str], topic: str, seconds: float) -> None:
    with SafeProducer(bootstrap_servers=servers, client_id="outage") as producer:
        print(f"records wait in {producer.spool_dir}; stop and start the brokers as you like")
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            future = producer.send(topic, b"%d" % number)
            future.durable()
            number += 1
            time.sleep(0.05)
            if number % 20 == 0:
                waiting = producer.metrics()["kafkasafe"]["unfinished_batches"]
                print(f"{number} sent, {waiting} batches wait for the cluster")
        producer.flush()
    print(f"{number} records are in {topic}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts one")
    parser.add_argument("--topic", default=TOPIC, help="only with --bootstrap")
    parser.add_argument("--seconds", type=float, default=60, help="only with --bootstrap")
    options = parser.parse_args()
    if options.bootstrap:
        own_hands(options.bootstrap.split(","), options.topic, options.seconds)
    else:
        own_cluster()


if __name__ == "__main__":
    main()
