"""A Kafka cluster in memory.

A pure state machine stands in its centre, without I/O, thread or clock (time is given): `checks`, `producers`, `log`
and `partition` are one partition, `centre` is all brokers and topics, `groups` and `transactions` their coordinators.
`*_requests` turn requests of Kafka's protocol into calls of these, `desk` turns bytes into requests.

Two doors lead to it. `wire` is the one for programs: Kafka's protocol on 127.0.0.1, in real time, held in users' hands
as `cluster.FakeCluster`. `virtual` is the one for engines: `kafkasafe.cluster.api.Cluster` in virtual time, without a
thread, as `VirtualCluster`. `control` is what both can be done to.
"""

from kafkasafe.testing.fake.asking import NotModelledError
from kafkasafe.testing.fake.cluster import FakeCluster
from kafkasafe.testing.fake.virtual import VirtualCluster
from kafkasafe.testing.fake.virtual_time import VirtualTime

__all__ = ["FakeCluster", "NotModelledError", "VirtualCluster", "VirtualTime"]
