"""The implementation of `kafkasafe.producer.SafeProducer`, in part classes (see docs/design.md).

The parts are a chain, in which each part calls only earlier ones: `state.py` (shared attributes), `placing.py`,
`encoding.py`, `sealing.py`, `accepting.py`, `batching.py`, `calling.py`, `flushing.py`, `closing.py`, `transacting.py`,
`looking.py`, `opening.py`. `chunk.py` is the open batch. `hold.py` lists the producers of this process, for the end of
the process and for forks. The methods that users call most are in `kafkasafe/producer.py`, which the parts import only
for types.
"""
