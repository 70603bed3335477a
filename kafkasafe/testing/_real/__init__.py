"""The parts of `kafkasafe.testing.broker.KafkaCluster`. Each object owns its state, and gets the objects that it calls
as arguments of its constructor.

The objects are `Layout` (brokers, settings and ports, all fixed), `Workspace` (the directory and its logs), `Release`
(version, jars, Java), `Nodes` (the processes), `Admin` (requests to the brokers), `Listeners` (certificate and users),
`NodeFiles` (settings and commands), `Topics` and `Disasters`. The objects use `node.py`, `processes.py`,
`admin_client.py` and `boot.py`, which do not depend on a cluster. `values.py` defines the values and errors that
`kafkasafe.testing.broker` exports.
"""
