"""The client of the brokers. It sends requests, and calls the reply callback of each request exactly once.

The client decides which broker gets a request, and when. The client also decides when to request metadata, and how long
to back off, and communicates through a `Network` (`kafkasafe/cluster/network.py`). Sockets, TLS, SASL, proxies, the
event loop and the encoding of requests come from kafka-python, which `kafkasafe/kafkapython` extends. In virtual time,
`kafkasafe/testing/fake` provides the network.

Each module uses only modules that are listed before it:

    calls.py         one request and its single outcome
    mailbox.py       jobs that other threads pass to the network thread
    schedule.py      the times of metadata requests
    link.py          the connection to one broker; links.py: all connections, and which brokers are silent
    reachability.py  whether the cluster answers
    watched_topics.py    the topics that metadata requests name
    refresher.py     metadata requests and their effects
    produce.py       turns batches into requests to leaders; keeps their order (fences, unanswered batches)
    questions.py         requests to a leader; broker_questions.py: to a certain broker, or to any
    transport.py     `Transport` itself: a façade, with its start, end and crash

Each object owns its state, and gets the objects that it uses as constructor arguments (see `Transport.__init__`).

Ownership. One I/O thread owns everything below the public methods. A public method only puts a job into the `Mailbox`,
which wakes the I/O thread. The I/O thread passes each job to the `BrokerLink` of one broker, or parks it
(`Refresher.park`) until the next metadata answer. While a link has no connection, or while its connection is throttled,
the link holds requests back and keeps their order. If a link's connection fails, the link fails all its requests.

The path of a batch: (1) `produce` puts a job into the mailbox. (2) `ProduceRouter` groups batches by leader into
requests. (3) `BrokerLink.submit` appends each request to `waiting`. `BrokerLink.pump` connects if necessary, and writes
the request as soon as the connection takes it. (4) When the answer arrives, the connection ends or the request times
out, the client calls `reply`, once. (5) If the error code means "not here", the client requests new metadata.

Non-obvious:

- An address may belong to another cluster after a while (a DNS name was switched, a pod's address was reused). So a
  pinned transport (`pin_cluster`) first asks each new connection for the cluster id: `BrokerLink.pump` holds all other
  requests back until the answer to a Metadata request has shown the right cluster id.
- A request counts as sent once its bytes are in the connection's write buffer. A request that fails earlier has
  `sent=False`: the broker cannot have seen it.
- A request's timeout begins when its last byte has left the write buffer (`Connection.send`). On a slow connection, the
  last byte may leave the buffer late, even if the broker is fast. A request also times out if the socket accepts no
  byte during the timeout.
- The transport sends no batch to a partition's new leader while the old leader has unanswered batches of the partition:
  otherwise the order of the batches would depend on which broker is faster.
- Questions about offsets and epochs are gathered (`Links.ask`): questions of one kind for one broker that come in the
  same turn of the loop become one request. The link sends the gathered questions before any later request to the
  broker, so the order is kept. In ListOffsets, each special timestamp (such as `LATEST`) is a separate kind, and
  look-ups by time are one more kind. So a look-up of the log's end does not wait for a look-up by time, which may have
  to read remote storage.
- When a connection ends, all its requests fail, sent or not, because a later batch must not overtake an earlier, lost
  batch. Another thread may submit a batch before it learns of the loss; the *fence* stops such batches (see
  `ProduceRequest.fence`).
- The transport does not use kafka-python's metadata loop, which does not return to the bootstrap servers when all known
  brokers have left, and logs an error ten times a second for a topic that does not exist. kafka-python's
  `ClusterMetadata` serves only as the address book.
- In kafka-python, a connection that fails while it is being initialised resets the back-off (`initialize` swallows the
  error), and after one authentication failure, kafka-python never connects to the broker again. Links keep their own
  back-off.
- A task of kafka-python's event loop costs about 50 µs, and registering a socket costs as much. So a request creates no
  task and registers no socket (`Loop`, `_DirectMixin`). Instead, sockets stay registered. All bytes that a turn of the
  event loop has to send are written at the end of the turn. Each link has one timer for all of its requests in flight.
  The consumer and the admin client use kafka-python's loop unchanged.
- When kafka-python connects, it leaves the socket of a failed attempt to the garbage collector, looks up names on the
  I/O thread and never gives up a TLS handshake. So `Manager._build_transport` replaces kafka-python's method.
"""

from kafkasafe.cluster.client.transport import Transport

__all__ = ["Transport"]
