"""The objects of a `kafkasafe.producer.SafeProducer` (see docs/design.md).

Each object owns its state. In this list, each module uses only the modules listed above it:

- `open_batch.py` defines the open batch.
- `lifecycle.py` stores whether the producer is open.
- `partitioning.py` stores the partition counts and chooses partitions.
- `accumulator.py` has the open batches and the lock under which they are sealed. It encodes with `encoding.py`.
- `delivery.py` lets callers wait for results.
- `admission.py` accepts records.
- `record_form.py` checks and serializes records.
- `shutdown.py` closes the producer.

`opening.py` creates all of these objects. `registry.py` has the state that all producers of a process share. This state
has two uses: producers on the same directory send their later records only after the records of a dropped producer, and
a forked child makes the producers that it inherited unusable. `record_future.py` defines the future that `send`
returns. `SafeProducer`, atomic batches, transactions and coroutines use these objects, but none of the objects depends
on them.
"""
