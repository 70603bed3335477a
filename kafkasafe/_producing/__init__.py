"""What `kafkasafe.producer.SafeProducer` does, in part classes of it (see docs/design.md).

They are a chain, each above what it calls: `state.py` (what is shared), `placing.py`, `encoding.py`, `sealing.py`,
`accepting.py`, `batching.py`, `calling.py`, `flushing.py`, `closing.py`, `transacting.py`, `looking.py`, `opening.py`.
`chunk.py` is the open batch; `hold.py` knows the producers of this process, for its end and for a fork. What users
call most is in `kafkasafe/producer.py`, which nothing in here imports but for types.
"""
