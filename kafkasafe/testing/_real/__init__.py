"""What `kafkasafe.testing.broker.KafkaCluster` is made of: objects that own their state, each handed what it calls.

`Layout` (fixed: brokers, settings, ports), `Workspace` (the directory and its logs), `Release` (version, jars, Java),
`Nodes` (the processes), `Admin` (requests to the brokers), `Listeners` (certificate and users), `NodeFiles` (settings
and commands), `Topics`, `Disasters`. Below them stand `node.py`, `processes.py`, `admin_client.py` and `boot.py`, which
know no cluster, and `values.py`: values and errors under the public names of `kafkasafe.testing.broker`.
"""
