"""The objects of a `kafkasafe.producer.SafeProducer` (see docs/design.md).

Each owns its state, and knows only those named before it: `open_batch.py` is the open batch, `lifecycle.py` says
whether the producer is open, `partitioning.py` knows the partitions and chooses among them, `accumulator.py` has the
open batches and the lock under which they are sealed (it encodes them with `encoding.py`), `delivery.py` is what calls
wait for, `admission.py` accepts records, `record_form.py` checks and serializes them, `shutdown.py` closes the
producer.

`opening.py` makes them. `registry.py` has what the producers of a process share, for the order on a directory and for
forks. `SafeProducer`, atomic batches, transactions and coroutines are built on these objects, which know none of them.
"""
