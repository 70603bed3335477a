"""A Kafka cluster in memory.

A pure state machine stands in its centre, without I/O, thread or clock (time is given): `checks`, `producers`, `log`
and `partition` are one partition, `centre` is all brokers and topics, `groups` and `transactions` their coordinators.
`*_requests` turn requests of Kafka's protocol into calls of these, `desk` turns bytes into requests. `wire` is the way
in for programs, and `cluster` what users hold in their hands.
"""

from kafkasafe.testing.fake.asking import NotModelledError
from kafkasafe.testing.fake.cluster import FakeCluster

__all__ = ["FakeCluster", "NotModelledError"]
