"""Repeats your own calls to Kafka: kafkasafe.classify decides whether, and RetryPolicy decides when.

python examples/own_calls.py                                # starts a Kafka of its own
python examples/own_calls.py --bootstrap localhost:9092     # or uses yours
"""

import argparse
import contextlib
import threading
import uuid

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from prometheus_client import REGISTRY

from kafkasafe import RetryEvent, RetryPolicy, metrics


def say(event: RetryEvent) -> None:
    then = f"given up ({event.gave_up})" if event.pause_s is None else f"again in {event.pause_s:.2f} s"
    print(f"try {event.attempt}: {event.verdict.name}, {then}")


# One policy for all calls. Calls to the same failing topic share its request rate.
policy = RetryPolicy(deadline_ms=30_000, rate_per_s=5, max_ms=1000, on_retry=say, client_id="own-calls")


@policy.on(lambda _, topic: topic, api="metadata")
def partitions(consumer: KafkaConsumer, topic: str) -> set[int]:
    """Returns the partitions of a topic that another thread creates later."""
    found = consumer.partitions_for_topic(topic)
    if not found:
        raise UnknownTopicOrPartitionError(topic)
    return found


@policy.on(lambda _, topic: topic, api="create_topics")
def create(admin: KafkaAdminClient, topic: str) -> None:
    """Creates a topic with three partitions."""
    admin.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts one")
    parser.add_argument("--topic", help="a topic that does not exist yet; default: a new name")
    options = parser.parse_args()
    topic = options.topic or f"own-calls-{uuid.uuid4().hex[:6]}"
    with contextlib.ExitStack() as stack:
        if options.bootstrap:
            servers = options.bootstrap.split(",")
        else:
            from kafkasafe.testing.broker import KafkaCluster

            servers = stack.enter_context(KafkaCluster(brokers=1)).bootstrap_servers
        metrics.install(policy)
        admin = KafkaAdminClient(bootstrap_servers=servers)
        stack.callback(admin.close)
        consumer = KafkaConsumer(bootstrap_servers=servers, allow_auto_create_topics=False)
        stack.callback(consumer.close)
        if consumer.partitions_for_topic(topic):
            parser.error(f"the topic {topic} exists already")
        somebody = threading.Timer(1.0, create, (admin, topic))
        somebody.start()
        # The topic does not exist yet, so the policy tries again.
        print(f"{topic} has {len(partitions(consumer, topic))} partitions")
        somebody.join()
        try:
            # The topic exists already, so the policy does not try again.
            create(admin, topic)
        except TopicAlreadyExistsError:
            print("the topic is there already: raised after one try")
        labels = {"client_id": "own-calls", "api": "metadata", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
        again = REGISTRY.get_sample_value("kafkasafe_retries_total", labels)
        print(f"Prometheus sees {again:.0f} retries")


if __name__ == "__main__":
    main()
