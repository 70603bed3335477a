"""The client of brokers: requests to them, each answered exactly once.

The client decides which request goes to which broker and when. The client also decides about metadata and back-off, and
communicates through a `Network` (`kafkasafe/cluster/network.py`). Sockets, TLS, SASL, proxies, the event loop and the
encoding of requests are kafka-python's, as `kafkasafe/kafkapython` extends them. In virtual time,
`kafkasafe/testing/fake` provides the network.

Each module uses only those listed before it:

    calls.py         one request and its single outcome
    mailbox.py       jobs that other threads pass to the network thread
    schedule.py      the times of metadata requests
    link.py          the connection to one broker; links.py all of them, and the silent ones
    reachability.py  whether the cluster answers
    watched_topics.py    the topics that metadata requests name
    refresher.py     metadata requests and their effects
    produce.py       batches become requests to leaders, in order: fences, and the brokers with unanswered batches
    questions.py         requests to a leader; broker_questions.py: to a certain broker, or to any
    transport.py     `Transport` itself: a façade, with its start, end and crash

Each object owns its state, and gets the objects that it uses as constructor arguments (see `Transport.__init__`).

Ownership. One I/O thread owns everything below the public methods. A public method only puts a job into the
`Mailbox`, which wakes that thread. The thread passes each job to the `BrokerLink` of one broker, or parks it
(`Refresher.park`) until the next metadata answer. A link keeps requests that cannot be written yet (no connection,
throttled) in their order. If the link's connection fails, the link fails all these requests.

A request's journey: (1) `produce` → mailbox; (2) `ProduceRouter` finds leaders and groups by them; (3)
`BrokerLink.submit` appends it to `waiting`, `BrokerLink.pump` connects, or writes it as soon as the connection takes
it; (4) the reply, the end of the connection, or its timeout → `reply` is called, once; (5) codes that mean "not here"
ask for new metadata.

Non-obvious:

- An address may lead to another cluster after a while (a DNS name was switched, a pod's address was reused). So a
  pinned transport (`pin_cluster`) first asks each new connection for the cluster id: `BrokerLink.pump` holds all other
  requests until the answer to a Metadata request admits the connection.
- A request counts as sent once its bytes are in the connection's write buffer. A request that fails earlier has
  `sent=False`: the broker cannot have seen it.
- A request's timeout begins when its last byte has left that buffer (`Connection.send`): on a slow connection, the time
  before that says nothing about the broker. A request also times out if the socket accepts no byte for that long.
- The transport sends nothing to a partition's new leader while the old one has unanswered batches: otherwise the broker
  that is faster would decide the order.
- Questions about offsets and epochs are gathered (`BrokerLink.ask`): questions of one kind for one broker that come in
  the same turn of the loop become one request. Before any other request to that broker, the link sends the gathered
  questions, so the order is kept. The timestamp of a ListOffsets request is part of its kind: a look-up of ends must
  not wait for a look-up by time in remote storage.
- When a connection ends, all its requests fail, sent or not: a later batch must not overtake an earlier one that was
  lost. The *fence* stops batches that another thread submits before it learns of the loss (see
  `ProduceRequest.fence`).
- The transport does not use kafka-python's metadata loop, which does not return to the bootstrap servers when all known
  brokers have left, and logs an error ten times a second for a topic that does not exist. `ClusterMetadata` serves only
  as the address book.
- In kafka-python, a connection that fails while it is being initialised resets the back-off (`initialize` swallows the
  error), and one authentication failure blocks a node for ever. Links keep their own back-off.
- A task of kafka-python's loop costs about 50 µs, and registering a socket costs as much. So requests use neither of
  them (`Loop`, `_DirectMixin`): sockets stay registered, the output of a turn is written at its end, and one timer
  watches all requests in flight on a link. The consumer and the admin client use kafka-python's loop unchanged.
- kafka-python leaves the socket of a failed connection attempt to the garbage collector, looks up names on the I/O
  thread and never gives up a TLS handshake: `Manager._build_transport` replaces that part.
"""

from kafkasafe.cluster.client.transport import Transport

__all__ = ["Transport"]
