"""Shrunk histories that broke a promise once."""

from __future__ import annotations

import consumer_world
import pytest
from unit_storm import run_storm
from unit_storm_recreated import run_any_storm

from .plan import Event, Plan, Settings
from .storm import play
from .world import pinned


def history(*events: tuple[str, int, int, int], seed: int = 0, kind: str = "", **settings: object) -> Plan:
    return Plan(seed, kind, Settings(**settings), tuple(Event(*each) for each in events))


PLANS = {
    # They were read where they were first written, behind batches accepted later; their gap was taken for a loss.
    "parts that were copied are not behind later batches for the next life": history(
        ("wait", 57062, 49314, 55849),
        ("send", 36383, 63581, 26389),
        ("wait", 46230, 62082, 46656),
        ("gone", 21403, 32043, 62958),
        seed=50547,
        kind="adopted in little room",
        workers=2,
        partitions=1,
        brokers=1,
        huge=10,
        segment_bytes=1000,
        spool_bytes=8000,
        memory_bytes=0,
        packs=True,
        heals=True,
        own_names=True,
    ),
    # Its leader was known, its metadata were refused: the way to the leader was asked for again and again, at once.
    # The double of the transport then still led to the leader that it knew from before.
    "a topic that may not be described any more makes no producer spin": history(
        ("send", 35376, 24561, 19237),
        ("wait", 47038, 36122, 9878),
        ("send", 10276, 53646, 46667),
        ("deny", 43498, 56454, 40905),
        ("wait", 24856, 8679, 62118),
        brokers=1,
    ),
    # An election kept the leader, so acknowledgements came under the epoch of before; the life after the next one had only that.
    "what was acknowledged under an earlier epoch is no loss to a life that has it no more": history(
        ("send", 33567, 24336, 9277),
        ("wait", 24048, 22481, 50887),
        ("lead", 23263, 39177, 53593),
        ("send", 63211, 296, 19098),
        ("wait", 7828, 18259, 53675),
        ("kill", 36690, 1146, 9655),
        ("send", 17187, 33816, 18154),
        ("wait", 51242, 58396, 45938),
        ("kill", 42867, 63402, 43538),
        partitions=1,
        brokers=3,
    ),
    # Read while the lane was still empty, believed a minute later: what was in it by then was overtaken.
    "what a lane owed when a producer began is not what an adopted lane waits for": history(
        ("send", 41358, 14398, 37884),
        ("darkness", 29597, 44755, 5338),
        ("long", 35446, 19794, 52321),
        ("gone", 19388, 45347, 50450),
        ("gone", 40431, 33621, 17345),
        ("send", 44612, 43210, 1989),
        ("long", 19649, 26543, 13276),
        ("send", 64439, 21402, 54508),
        ("long", 43433, 23734, 52765),
        ("send", 7023, 12580, 19739),
        ("wait", 46191, 33312, 38592),
        ("gone", 65379, 49163, 49248),
        ("long", 20843, 19861, 2348),
        spool="on_error",
        workers=3,
        partitions=1,
        brokers=1,
        segment_bytes=1500,
    ),
    # A restarted broker acknowledged under the epoch of before: nothing was lost, which the next life did not know.
    "what was looked into is no loss to the next life": history(
        ("send", 53619, 45615, 58658),
        ("wait", 22251, 4911, 63452),
        ("disk", 49962, 1659, 54590),
        ("send", 7285, 65278, 4960),
        ("broker", 9046, 13499, 7867),
        ("sleep", 64789, 9558, 28216),
        ("wait", 23505, 10739, 20892),
        ("close", 10565, 65214, 35216),
        partitions=3,
        brokers=1,
    ),
    # It did, after the time in which late requests come, and after its old batch had been looked for and sent again.
    "half a request on a slow way does not arrive after its connection ended": history(
        ("close", 537, 6420, 33455),
        ("uplink", 59586, 54394, 43022),
        ("send", 57204, 48142, 30852),
        ("send", 39951, 976, 43813),
        ("wait", 24578, 55659, 45568),
        ("swallow", 55199, 51782, 39911),
        ("cut", 12051, 13329, 257),
        ("send", 16452, 55518, 4487),
        ("wait", 37063, 23753, 9296),
        seed=9314,
        old=100,
        partitions=2,
        brokers=1,
    ),
    # It went out with fresh ones, was appended late behind what was sent again of them, and after it their late requests.
    "an old batch waits for the answers to all before it": history(
        ("late", 58707, 45762, 42373),
        ("send", 14187, 21014, 40924),
        ("wait", 3233, 27697, 17975),
        ("send", 5516, 17858, 64386),
        ("late", 12854, 10808, 45625),
        ("wait", 49558, 30215, 38409),
        seed=10577,
        old=30,
        partitions=1,
        brokers=1,
    ),
    # The topic was created again, the next place is 0: no leader epoch tells that the log was cut. The log itself does.
    "a late request in a log that was empty does not speak for those before it": history(
        ("send", 20053, 56455, 28529),
        ("wait", 24639, 7980, 31401),
        ("late", 60219, 4403, 42123),
        ("recreate", 9, 47191, 28662),
        ("wait", 23810, 11558, 30614),
        ("send", 372, 395, 44605),
        ("wait", 6103, 30894, 34355),
        seed=28378,
        partitions=2,
        brokers=1,
        heals=True,
        retains=True,
        loses=True,
    ),
    "a late request in a log that was empty does not speak for those before it, after a kill": history(
        ("swallow", 43463, 27508, 8699),
        ("kill", 8954, 44682, 38648),
        ("send", 43282, 46157, 772),
        ("wait", 16921, 5720, 15594),
        ("code", 48216, 30801, 60962),
        ("wait", 5220, 55241, 61773),
        ("wipe", 15507, 39772, 55207),
        ("send", 39789, 62978, 27348),
        ("late", 63685, 7100, 25501),
        ("wait", 32990, 2697, 55658),
        ("kill", 724, 62172, 54324),
        seed=31930,
        brokers=1,
        heals=True,
        loses=True,
    ),
    # The simulated transport stopped with a TypeError.
    "a silent link whose partition has no leader": history(
        ("send", 40421, 54923, 7381),
        ("wait", 63926, 32952, 64448),
        ("broker", 19777, 10457, 19903),
        ("forget", 14956, 26528, 6808),
        ("broker", 40421, 191, 5116),
        ("broker", 36618, 3025, 40099),
        ("wait", 25332, 23958, 37067),
        seed=41286,
        partitions=1,
        segment_bytes=4000,
        memory_bytes=2000,
    ),
    # A snapshot repeated how far everything was finished, and the life after forgot what was acknowledged behind it.
    "what was found in the log is missed two lives later": history(
        ("send", 13588, 41, 6310),
        ("wait", 1992, 35345, 44153),
        ("wipe", 51521, 26334, 27419),
        ("send", 54727, 52738, 39529),
        ("deaf", 41674, 24045, 275),
        ("late", 54566, 48827, 60286),
        ("wait", 53787, 18370, 45164),
        ("swallow", 44810, 59857, 41733),
        ("cut", 14779, 59011, 7901),
        ("wait", 48376, 43319, 39487),
        ("kill", 37050, 20039, 14850),
        ("slow", 28226, 37439, 40452),
        ("wait", 11736, 57139, 284),
        ("wipe", 58463, 10104, 51400),
        ("kill", 17781, 45123, 41576),
        seed=801480,
        kind="lossy",
        partitions=1,
        brokers=1,
        heals=True,
        retains=True,
        loses=True,
    ),
    # The reasons of many small batches were not counted.
    "rejected holds what it may hold with what is written about each batch": history(
        ("send", 11667, 9327, 54164),
        ("send", 64875, 44418, 55983),
        ("send", 12168, 58728, 62843),
        ("crash_at", 64648, 42517, 40510),
        ("send", 64124, 4787, 45702),
        ("wait", 48780, 8511, 38441),
        ("kill", 5342, 28662, 5194),
        ("deny", 22749, 24654, 16907),
        ("send", 17126, 55179, 44822),
        ("wait", 48103, 53462, 34866),
        ("send", 42822, 22044, 37354),
        ("send", 34055, 38634, 16967),
        ("wait", 37841, 34329, 30640),
        ("wait", 55572, 20003, 60924),
        seed=47909,
        kind="room",
        segment_bytes=1500,
        spool_bytes=8000,
        refused_s=20.0,
        heals=True,
    ),
    # Eleven requests at once, and a second later the next ones: more than ten a second.
    "a window of batches that fail is counted before the log is read again": history(
        ("send", 54253, 58597, 45022),
        ("wait", 8537, 58577, 19547),
        ("send", 14584, 56534, 46985),
        ("code", 21724, 9489, 1309),
        ("wait", 45376, 23816, 23650),
        ("send", 27116, 10164, 28941),
        ("code", 65445, 12836, 41056),
        ("code", 2400, 63434, 834),
        ("lead", 39204, 8335, 32872),
        ("wait", 62368, 65013, 28448),
        seed=71073,
        kind="pipeline",
        partitions=1,
        brokers=1,
    ),
    # For four seconds, in the middle of a pause of thirteen.
    "a topic that was there in between has not been missing all the time": history(
        ("missing", 58862, 7214, 35098),
        ("send", 22292, 5678, 55645),
        ("wait", 48803, 55906, 18564),
        ("wait", 8322, 40427, 50230),
        ("missing", 10298, 45603, 59993),
        ("wait", 20446, 60732, 7924),
        seed=1216554,
        kind="denied",
        partitions=1,
        brokers=1,
        refused_s=20.0,
        heals=True,
    ),
    # When the topic came, they were divided, and the segment with the mark of their old positions was deleted.
    "records that were copied forward before their topic was there go before a later life": history(
        ("send", 28997, 64479, 9090),
        ("send", 23142, 20499, 55545),
        ("wait", 9422, 6891, 12180),
        ("kill", 51097, 24870, 21181),
        ("send", 5343, 8314, 3250),
        ("kill", 64238, 17945, 28548),
        ("send", 23529, 8085, 22534),
        ("send", 46235, 27327, 41364),
        ("kill", 51362, 13362, 27547),
        ("send", 42376, 63261, 24512),
        ("send", 63696, 46063, 36899),
        ("send", 13674, 30647, 36789),
        seed=9200123,
        kind="adopted",
        workers=3,
        brokers=1,
        late_topic=True,
        segment_bytes=1500,
        spool_bytes=8000,
        memory_bytes=0,
        heals=True,
        own_names=True,
    ),
}
"""What holds, with a comment that says what was wrong."""


@pytest.mark.parametrize("rule", PLANS)
def test_a_producer_keeps_its_promises(rule):
    play(PLANS[rule])


def test_a_unit_that_waits_behind_what_is_put_back_is_no_plain_batch_to_the_next_life():
    """What was lost with the old topic was put back under new ids: the next life took the mark of these for the unit's."""
    for seed in (197, 316):
        with pinned():
            assert any(run_any_storm(seed).gone.values())


def test_what_units_had_in_a_topic_is_missed_by_a_life_that_finds_no_more_of_them_than_their_end():
    """The segment with their places was gone when they ended, no mark told the topic's id, or another record took the place."""
    for seed in (18, 219, 2379, 21936, 36776):
        with pinned():
            assert any(run_any_storm(seed).reported.values())


def test_a_transaction_ends_in_the_topic_that_has_the_name_now():
    """The fake waited for the marker that it had written into the log of the deleted one, and answered 51 for ever."""
    with pinned():
        assert any(run_any_storm(202557).gone.values())


def test_what_comes_late_into_a_new_log_of_an_old_broker_may_hang_there():
    """Brokers before 3.6 take it, and nobody ends it: readers of committed records wait for ever. Not the producer's loss."""
    with pinned():
        assert any(run_any_storm(3001497).gone.values())


def test_what_an_earlier_life_released_says_nothing_of_what_was_acknowledged_since():
    """A leader was elected again before the metadata said so, and its epoch ended before what it then acknowledged."""
    for seed in (9100546, 9002083):
        with pinned():
            assert not run_any_storm(seed).alarms


def test_what_the_spool_has_given_up_is_looked_for_by_its_offsets():
    """An election kept the leader, and what it acknowledged since was noted under the epoch before."""
    with pinned():
        assert not run_storm(9015495).alarms


def test_batches_of_the_lanes_transactions_refute_a_suspicion_though_the_spool_no_longer_has_them():
    """The metadata's leader epoch was older than the leader's, so the epoch of the acknowledgement ended too early."""
    for seed in (73823, 78671):
        with pinned():
            run_any_storm(seed)


CONSUMERS = {
    # The topic was recreated after a commit at offset 1. The check expected 0, the position before the rebalance.
    "a reset after a rebalance names the groups offset as the position before": 920067,
    # The consumer had sought the first record that it had read, so the history up to its position was empty.
    "a reset after a rebalance names the position before though nothing before it was read": 920127,
    # The metadata still named the topic before. From then on they were taken for outdated, and nothing was read.
    "a topic in which the group has an offset is not older than the metadata": 940092,
    # The answer was under way when the log was lost and written again under the same leader epoch, so nobody can know.
    "records of a log that was lost without a trace may be returned afterwards": 950110,
    # The group had no offset when the partition came back, and the position was reset to the new end.
    "a reset to the end of a truncated log reports what was read and is gone": 3001873,
    # The metadata named no epoch and no other leader. A check had found an epoch, so a lost connection did not count.
    "a broker that leads again without an epoch may have another log": 3002695,
    # The consumer had sought back to it, and the topic was recreated. The check expected it in the `PositionReset`.
    "a position at the first record of a deleted topic is not named as the one before": 3004257,
}


@pytest.mark.parametrize("rule", CONSUMERS)
def test_a_consumer_keeps_its_promises(rule):
    consumer_world.play(CONSUMERS[rule])
