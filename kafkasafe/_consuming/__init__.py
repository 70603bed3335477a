"""What `kafkasafe.consumer.SafeConsumer` decides about positions, in part classes of it (see docs/design.md).

They are a chain, each above what it calls: `ground.py` (the state that is shared), `waiting.py`, `reporting.py`,
`keeping.py`, `walking.py`, `positions.py`, `fetched.py`, `applying.py`. `partition.py` is what is known of one
partition; `fetcher.py`, `coordinator.py` and `client.py` are kafka-python's classes with our decisions in them. What
users call is in `kafkasafe/consumer.py`, which nothing in here imports.
"""
