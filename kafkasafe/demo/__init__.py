"""The engine of `kafkasafe demo`: real brokers, real producers, kill -9 of everything, and an audit at the end.

There are three brokers (replication 3, min.insync.replicas 2). Every client under test runs in its own process, and
sends numbered records to its own topic. All topics have their replicas on the same brokers, so one fault affects all
clients at once. The faults follow each other:

- `leader`: the broker that leads a partition is killed, and started again;
- `producer`: the producing processes are killed, at any moment, and started again;
- `brokers`: all brokers are killed at once, and started again;
- `everything`: all brokers are killed; while they are down, the producing processes are killed too; then all start
  again.

Record *i* belongs to partition *i mod P* and is the *i div P*-th record there. So the numbers alone show loss,
duplication and order. Each number is used only once: a restarted process continues after the last number that its
predecessor may have sent.

A `Ledger` contains what the producer reported to the application. The ledger is a memory-mapped file, so its content
survives kill -9 of the process. Writing to the ledger needs no system call per record: system calls would change the
timing. The ledger has one byte per record for each of these facts:

- *attempted* before `send`: from then on, the number counts as used;
- *accepted* after `send` returned;
- *durable* after a `producer.durable()` that began after `send` returned (SafeProducer), or after the commit of the
  row in the outbox;
- *acked* when the client reports that the cluster has the record; *failed* when the client reports that it has given
  up.

One of the clients for comparison uses an **outbox**, the usual remedy for a producer that loses records. The
application commits each record to a table of SQLite. A relay sends the rows with confluent-kafka, waits for the
acknowledgements, and deletes the rows. If the relay is killed after Kafka's answer, but before the deletion, the next
relay sends the rows again.

The application may rely on **promised** records, and the audit counts how many of them are lost. A record of
SafeProducer or the outbox is promised once it is durable or acknowledged. A record of another client is promised once
`send` has accepted it: from then on, the application keeps no copy of the record, and relies on the client. Records
lost *after* their acknowledgement are counted separately.

    ledger.py    what a client reported, in a file that survives kill -9
    clients.py   the producing process: the clients under test
    worker.py    starts, kills and watches a producing process
    audit.py     compares the contents of the topic with the promises
    run.py       runs the brokers and the faults, in order
"""
