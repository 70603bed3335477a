"""What `kafkasafe.testing.broker.KafkaCluster` is made of: part classes in a chain, each above what it calls.

`places.py` (where things are, and the state that is shared), `asking.py` (the admin client), `defining.py` (how nodes
are started), `running.py`, `topics.py`, `disasters.py`. Below them stand `node.py`, `processes.py` and `boot.py`, which
know no cluster, and `values.py`: what a cluster tells, under public names of `kafkasafe.testing.broker`.
"""
