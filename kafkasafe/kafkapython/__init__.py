"""kafka-python, with fixes and additions.

All code that uses private names of kafka-python, or that replaces parts of kafka-python, is in this package. This code
was written against kafka-python 3.0.12. If a release of kafka-python renames something private, only modules of this
package break. When kafkasafe is imported, `kafkasafe/_kafka_version.py` refuses the releases of kafka-python that are
known to break kafkasafe. If another release has renamed a field of KafkaConsumer, or of its fetcher, coordinator or
subscription, the constructor of SafeConsumer raises an error that names the field (`private_fields.py`). The following
releases do not work: 2.0.2 to 2.3.3, which lack `kafka.errors.RetriableError`; 3.0.0 to 3.0.2, which lack `TaskState`;
3.0.4, whose requests can be longer than their buffer; 3.0.5 to 3.0.8, whose `mark_pending_revocation` takes no
argument; and the branch of 3.1, which has neither `kafka.net.selector` nor `kafka.net.transport`. The target
`test-oldest` of the Makefile runs tests with the oldest release that works.

    requests.py      the classes of requests; makes a request from a name and plain data
    wire.py          bytes of Produce requests and their answers, without copies
    offsets_wire.py  bytes of ListOffsets requests and their answers, for many partitions
    frames.py        frames of the protocol as the fake broker and the proxies of kafkasafe.testing read and write them
    loop.py          the event loop: handles requests without a task for each, and closes itself on its own thread
    sockets.py       sockets: receives large responses without copies, and closes without leaving anything open
    manager.py       opens connections: looks up names on other threads, closes the sockets of failed attempts
    connection.py    connections, as `kafkasafe.cluster.network.Connection` defines them
    network.py       the network of a client: the loop and its thread, connections and addresses
    metadata.py      metadata: no request for an update gets lost
    admin.py         the admin client, without leaks if it cannot connect
    subscription.py  positions: another object chooses the offsets of a commit
    records.py       fetched records: many are decoded at a time
    client.py        KafkaConsumer's connections: uses the bootstrap servers again if no broker can be reached
    adapter.py       the parts of kafka-python that a consumer's decisions use: states of partitions, group, metadata
    owner.py         the objects that the fetcher and the coordinator of a consumer ask for decisions
    fetcher.py       the fetcher: resets and checks positions and uses responses as these objects decide; returns Arrow
                     tables, makes only requests that can be sent, and loses no data at an interrupt
    coordinator.py   the group: fixes joins and outdated committed offsets, and adds lineages to commits
    consumer.py      a KafkaConsumer with these parts, with Arrow tables and a faster iterator
    private_fields.py
                     the private fields of KafkaConsumer and its parts, and which of them are missing
    membership.py    private parts of KafkaConsumer that kafkasafe.aio needs

`pyproject.toml` lists which modules each module may import.
"""
