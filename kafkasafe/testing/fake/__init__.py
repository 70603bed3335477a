"""A Kafka cluster in memory.

The cluster's core is a pure state machine without I/O, thread or clock (each call passes the time). `checks`,
`producers`, `log` and `partition` implement one partition. `centre` implements all brokers and topics. `groups` and
`transactions` implement the coordinators. The modules `*_requests` turn requests of Kafka's protocol into calls of the
other modules. `request_handler` turns bytes into requests.

There are two ways to use the cluster. Programs use `cluster.FakeCluster`, which speaks Kafka's protocol on 127.0.0.1 in
real time (`wire`). Tests of the delivery engine use `virtual.VirtualCluster`, whose clients implement
`kafkasafe.cluster.api.Cluster` in virtual time, without a thread. `control` has the methods that both clusters share.
`weather` has the network faults that both clusters simulate.
"""

from kafkasafe.testing.fake.asking import NotModelledError
from kafkasafe.testing.fake.cluster import FakeCluster
from kafkasafe.testing.fake.virtual import VirtualCluster
from kafkasafe.testing.fake.virtual_time import VirtualTime

__all__ = ["FakeCluster", "NotModelledError", "VirtualCluster", "VirtualTime"]
