"""The decisions of `kafkasafe.consumer.SafeConsumer` about positions, in part classes (see docs/design.md).

The parts are a chain, in which each part calls only earlier ones: `ground.py` (shared state), `waiting.py`,
`reporting.py`, `keeping.py`, `walking.py`, `positions.py`, `fetched.py`, `applying.py`. `partition.py` is the state of
one partition. `fetcher.py`, `coordinator.py` and `client.py` extend kafka-python's classes to use these decisions. The
public methods are in `kafkasafe/consumer.py`, which no module here imports.
"""
