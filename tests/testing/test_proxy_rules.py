"""The rules of the fault proxy, without a broker."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from kafkasafe.kafkapython import frames
from kafkasafe.testing import proxy_rules


@pytest.mark.parametrize("api", ["Fetch", "Produce"])
@pytest.mark.parametrize(
    "names",
    [{UUID(int=1): "orders", UUID(int=2): "orders"}, {UUID(int=2): "orders", UUID(int=1): "orders"}, {}],
    ids=["the new topic", "the old topic", "unknown"],
)
def test_an_answer_of_the_proxy_has_the_topic_id_of_the_request(api: str, names: dict[UUID, str]) -> None:
    """A topic was recreated, so that two ids have its name; or no answer named the id yet."""
    version = 13
    known = frames.api(api)
    if not known.knows(version):
        pytest.skip(f"kafka-python knows no {api} v{version}")
    array = known.request._struct.fields["topic_data" if api == "Produce" else "topics"]
    parts = array.fields["partition_data" if api == "Produce" else "partitions"]
    asked = parts.data_class(version=version)
    setattr(asked, "index" if api == "Produce" else "partition", 3)
    topic = array.data_class(version=version, topic_id=UUID(int=2), **{parts.name: [asked]})
    message = known.request(version=version, **{array.name: [topic]})
    frame = struct.pack(">hhihb", known.key, version, 7, -1, 0) + bytes(message.encode())
    rules = proxy_rules.Rules()
    rules.add(known, "orders" if names else None, None).answer_without_forwarding(6)
    call = proxy_rules.Call(0.0, api, version, 1, "", 1, (("orders", 3),))
    pending = proxy_rules.Pending(call, frames.parse_request(frame))
    rules.hold_back(pending, frame, names)
    assert not pending.forwarded
    response = frames.empty_response(pending.request)
    assert rules.apply(pending, response, names)
    (answered,) = response.message.responses
    assert answered.topic_id == UUID(int=2)
    (entry,) = getattr(answered, "partition_responses" if api == "Produce" else "partitions")
    assert (entry.error_code, getattr(entry, "index" if api == "Produce" else "partition_index")) == (6, 3)
