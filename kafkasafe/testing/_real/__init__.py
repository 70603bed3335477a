"""The parts of `kafkasafe.testing.broker.KafkaCluster`. Each owns its state, and gets the objects that it calls.

These are `Layout` (brokers, settings and ports, all fixed), `Workspace` (the directory and its logs), `Release`
(version, jars, Java), `Nodes` (the processes), `Admin` (requests to the brokers), `Listeners` (certificate and users),
`NodeFiles` (settings and commands), `Topics` and `Disasters`. They use `node.py`, `processes.py`, `admin_client.py` and
`boot.py`, which know no cluster. `values.py` has values and errors with the public names of `kafkasafe.testing.broker`.
"""
