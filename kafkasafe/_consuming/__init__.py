"""The decisions of `kafkasafe.consumer.SafeConsumer` about positions (see docs/design-consumer.md).

`objects.py` makes the objects. Each constructor takes the objects that the new object uses. In this list, each module
comes after the modules that it uses:

- `ports.py`: interfaces to kafka-python's assigned partitions, group and metadata.
- `event_table.py`, `reports.py`, `followers.py`: the level and the metrics of each event, the destinations of events,
  and the followers from which the consumer may read.
- `history.py`, `partition.py`: the state of one partition.
- `connections.py`, `log_checks.py`, `look_ups.py`: our own connections, and the procedures that ask brokers over them.
- `lineage_file.py`, `parts.py`, `commits.py`, `rereading.py`, `status.py`: kept histories, assigned partitions and
  their errors, committed offsets, partitions to read again, the program's polls and the state for probes.
- `moves.py`, `pauses.py`, `positions.py`, `responses.py`, `results.py`: change positions according to the tables in
  `kafkasafe._consuming.position_table`.

kafka-python's fetcher and coordinator, which `kafkasafe.kafkapython` extends, use these decisions. The public methods
are in `kafkasafe/consumer.py`, which no module of this package imports.
"""
