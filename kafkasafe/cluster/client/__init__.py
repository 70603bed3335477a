"""The client of brokers: requests to them, each answered exactly once.

Which request goes where and when, metadata and back-off are decided here, over a `Network`
(`kafkasafe/cluster/network.py`). Sockets, TLS, SASL, proxies and the event loop are kafka-python's, as
`kafkasafe/kafkapython` extends them, and so is the encoding of requests. In virtual time, `kafkasafe/testing/fake` has
the network.

In this order, each room knows those above it:

    order.py         fences, and where the batches went that are not answered yet
    calls.py         one request and its single outcome
    mailbox.py       the way in for other threads
    schedule.py      when metadata are asked for
    link.py          the way to one broker; links.py all of them, and which are silent
    produce_call.py  one Produce request, and what all of them share
    refresher.py     which broker is asked for metadata, what an answer changes, and what waits for it
    router.py        which broker a request goes to
    produce_router.py    batches become requests to leaders, in order
    questions.py         what is asked of a leader; broker_questions.py of another broker, or of any
    service.py       what the network's thread asks of the client: begin, look, end
    transport.py     `Transport` itself, a façade

Each object owns its state and gets those that it needs as arguments, so they are a tree (`Transport.__init__`).

Ownership. One I/O thread owns everything below the public methods. A public method only puts a job into the
`Mailbox`, which wakes that thread. The thread passes each job on: to the `Link` of one broker, or aside
(`Refresher.park`) until the next answer about metadata. A link holds what cannot be written yet (connection being
made, throttled), in order, and lets go of all of it when its connection fails.

A request's journey: (1) `produce` → mailbox; (2) `ProduceRouter` finds leaders and groups by them; (3) `Link.submit`
appends it to `waiting`, `Link.pump` connects, or writes it as soon as the connection takes it; (4) the reply, the
end of the connection, or its timeout → `reply` is called, once; (5) codes that mean "not here" ask for new metadata.

Non-obvious:

- Another cluster may have come to live behind an address (a switch of DNS names, a pod's address given to another).
  A guarded transport (`guard`) therefore asks on each new connection which cluster it is, before anything else goes
  out on it: `Link.pump` holds everything back until the answer to a Metadata request admits the connection.
- A request counts as sent from the moment its bytes were handed to the connection's write buffer. Before that it
  failed with `sent=False`: the broker cannot have seen it.
- Its time-out begins when the last of them has left that buffer (`Connection.send`): on a slow way the time before
  that says nothing about the broker. A socket that takes no byte at all for as long has timed out as well.
- Nothing is sent to a partition's new leader while batches for it are outstanding at the old one: whoever answers
  first would decide the order.
- Questions about offsets and epochs are gathered (`Link.ask`): those of one kind that are for one broker and come in
  the same turn of the loop go out as one request. What else goes to that broker sends them first, so they stay in
  order. The kind includes what is looked for: ends must not wait for a look-up by time in remote storage.
- A connection that ends takes everything with it that waited for it, sent or not: a later batch must not overtake
  an earlier one that was lost. Batches that another thread submits before it has heard of the loss are held off by
  the *fence* (see `ProduceRequest.fence`).
- kafka-python's own metadata loop is not used: it knows no way back to the bootstrap servers once all brokers it
  knew are gone, and logs an error ten times a second for a topic that does not exist. `ClusterMetadata` serves as
  the address book only.
- kafka-python's back-off is reset by a connection that fails while it is being initialised (`initialize` swallows
  the error), and one authentication failure blocks a node for ever. Links keep their own back-off.
- A task of kafka-python's loop costs some 50 µs, and so does it to register a socket. So what each request needs goes
  without (`Loop`, `_DirectMixin`): sockets stay registered, what a turn has to write goes out at its end, and one
  timer watches all that is in flight on a link. The consumer and the admin client have kafka-python's loop as it is.
- kafka-python leaves the socket of a failed connection attempt to the garbage collector, looks up names on the I/O
  thread and never gives up a TLS handshake: `Manager._build_transport` replaces that part.
"""

from kafkasafe.cluster.client.transport import Transport

__all__ = ["Transport"]
