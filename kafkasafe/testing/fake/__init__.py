"""A Kafka cluster in memory.

Its core is a pure state machine without I/O, thread or clock (each call passes the time). `checks`, `producers`, `log`
and `partition` implement one partition, `centre` all brokers and topics, `groups` and `transactions` their
coordinators. `*_requests` turn requests of Kafka's protocol into calls of these modules, and `request_handler` turns
bytes into requests.

There are two ways to use it. `wire` is for programs: Kafka's protocol on 127.0.0.1, in real time; users hold it as
`cluster.FakeCluster`. `virtual` is for engines: `kafkasafe.cluster.api.Cluster` in virtual time, without a thread, as
`VirtualCluster`. `control` has the methods that both share, and `weather` the faults of the network, which
both apply.
"""

from kafkasafe.testing.fake.asking import NotModelledError
from kafkasafe.testing.fake.cluster import FakeCluster
from kafkasafe.testing.fake.virtual import VirtualCluster
from kafkasafe.testing.fake.virtual_time import VirtualTime

__all__ = ["FakeCluster", "NotModelledError", "VirtualCluster", "VirtualTime"]
