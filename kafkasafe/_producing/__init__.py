"""The objects of a `kafkasafe.producer.SafeProducer` (see docs/design.md).

Each object owns its state. The objects of a module use only objects of modules that come earlier in this list:

- `open_batch.py` defines the open batch.
- `lifecycle.py` stores whether the producer is open.
- `partitioning.py` stores the partition counts and chooses partitions.
- `accumulator.py` has the open batches and the lock under which they are sealed. It uses `encoding.py` to encode them.
- `delivery.py` lets callers wait for results.
- `admission.py` accepts records.
- `record_form.py` checks and serializes records.
- `shutdown.py` closes the producer.

`opening.py` creates all of these objects. `registry.py` has the state that all producers of a process share. It keeps
the order of the records that several producers send from one directory, and it ends producers in a forked child.
`record_future.py` defines the future that `send` returns. `SafeProducer`, atomic batches, transactions and coroutines
use these objects. The objects do not depend on their users.
"""
