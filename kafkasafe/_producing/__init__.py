"""The implementation of `kafkasafe.producer.SafeProducer` (see docs/design.md).

Objects own their state, and each knows only those named before it: `chunk.py` is the open batch, `lifecycle.py` says
whether the producer is open, `partitioning.py` knows the partitions and chooses among them, `accumulator.py` has the
open batches and the lock under which they are sealed (it encodes them with `encoding.py`), `delivery.py` is what calls
wait for, `admission.py` accepts records, `record_form.py` checks and serializes them.

What is left of the parts is a chain, in which each part calls only earlier ones: `state.py` (shared attributes),
`closing.py`, `transacting.py`, `looking.py`, `opening.py`. `hold.py` lists the producers of this process, for the end
of the process and for forks. The methods that users call most are in `kafkasafe/producer.py`, which the parts import
only for types.
"""
