"""The objects of a `kafkasafe.producer.SafeProducer` (see docs/design.md).

Each object owns its state, and uses only objects of modules that are named before its own: `open_batch.py` has the open
batch, `lifecycle.py` knows whether the producer is open, `partitioning.py` knows the partitions and chooses among them,
`accumulator.py` has the open batches and the lock under which they are sealed (it encodes them with `encoding.py`),
`delivery.py` has the waits of callers, `admission.py` accepts records, `record_form.py` checks and serializes them,
`shutdown.py` closes the producer.

`opening.py` creates all of these objects. `registry.py` has the state that all producers of a process share: for the
order of records on a directory, and for forks. `record_future.py` has the future of one `send`. `SafeProducer`, atomic
batches, transactions and coroutines use these objects. The objects do not know their users.
"""
