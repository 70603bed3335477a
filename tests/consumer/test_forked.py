"""A consumer that was opened before a fork belongs to the parent process."""

from __future__ import annotations

import os
import signal

import consuming
from consuming import Consumers, new_name, new_topic
from kafka import TopicPartition

CALLS = {
    "poll": (100,),
    "poll_arrow": (100,),
    "commit": (),
    "position": (),
    "committed": (),
    "end_offsets": (),
    "beginning_offsets": (),
    "offsets_for_times": (),
    "partitions_for_topic": (),
    "save_lineage": (),
    "__next__": (),
    "close": (),
}


def test_in_a_child_calls_raise_at_once_and_the_parent_reads_on(fake_kafka):
    topic = new_topic(fake_kafka)
    tp = TopicPartition(topic, 0)
    consuming.produce(fake_kafka, topic, [b"%d" % number for number in range(20)])
    with Consumers(fake_kafka) as consumers:
        consumer = consumers(
            topic,
            group_id=new_name(),
            auto_offset_reset="earliest",
            max_poll_records=5,
            enable_auto_commit=False,
        )
        before = consuming.collect(consumer, 5)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(20)  # it would wait for ever
            arguments = {
                "position": (tp,),
                "committed": (tp,),
                "end_offsets": ([tp],),
                "beginning_offsets": ([tp],),
                "offsets_for_times": ({tp: 0},),
                "partitions_for_topic": ("another",),
            }
            consumer.seek(tp, 10)  # only in this process
            for name, given in CALLS.items():
                try:
                    getattr(consumer, name)(*arguments.get(name, given))
                    told = "ok"
                except BaseException as error:
                    told = type(error).__name__
                os.write(writing, f"{name} {told}\n".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as output:
            told = dict(line.split() for line in output)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, told
        assert told == dict.fromkeys(CALLS, "ForkedProcessError") | {"close": "ok"}
        records = before + consuming.collect(consumer, 15)
        assert [record.offset for record in records] == list(range(20))
        consumer.commit()
