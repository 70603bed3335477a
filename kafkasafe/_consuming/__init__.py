"""The decisions of `kafkasafe.consumer.SafeConsumer` about positions (see docs/design-consumer.md).

Each object gets the objects that it uses as constructor arguments; `reading.py` makes all of them. The modules, each of
them after the modules that it uses:

- `reports.py`, `followers.py`: the destinations of events, and the followers from which the consumer may read.
- `history.py`, `partition.py`: the state of one partition.
- `connections.py`, `log_checks.py`, `look_ups.py`: our own connections, and the procedures that ask brokers over them.
- `lineage_file.py`, `parts.py`, `commits.py`, `rereading.py`, `status.py`: kept histories, assigned partitions and
  their errors, committed offsets, partitions to read again, the program's polls and the state for probes.
- `moves.py`, `pauses.py`, `positions.py`, `responses.py`, `results.py`: what happens to positions, as the table in
  `kafkasafe._consuming.position_table` says.

kafka-python's fetcher and coordinator, which `kafkasafe.kafkapython` extends, use these decisions. The public methods
are in `kafkasafe/consumer.py`, which no module here imports.
"""
