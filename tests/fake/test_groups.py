"""Consumer groups, without a client, in time that is given."""

import pytest

from kafkasafe.testing.fake.centre import Centre
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.groups import Groups, GroupState
from kafkasafe.testing.fake.settings import profile_of


@pytest.fixture
def groups():
    return Groups(Centre(1, profile_of("4.3.0"), {}, {}, cluster_id="c", now_ms=0))


def join(groups, member_id="", now_ms=0, **more):
    options = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "needs_id": False, **more}
    return groups.join("g", member_id, "client", "consumer", [("range", b"meta")], now_ms=now_ms, **options)


def stable(groups, *, now_ms=0):
    member = join(groups, now_ms=now_ms)
    groups.sync("g", member.member_id, groups.get("g").generation, {member.member_id: b"all"}, now_ms)
    assert groups.get("g").state is GroupState.STABLE
    return member


def refused(work, *arguments):
    with pytest.raises(RefusedError) as caught:
        work(*arguments)
    return caught.value.code


def test_a_silent_member_is_thrown_out_after_its_session_timeout(groups):
    member = stable(groups)
    groups.heartbeat("g", member.member_id, 1, 9_000)
    groups.advance(18_999)
    assert groups.get("g").members
    groups.advance(19_000)
    assert not groups.get("g").members
    assert groups.get("g").state is GroupState.EMPTY
    assert refused(groups.heartbeat, "g", member.member_id, 1, 19_001) == 25


def test_a_member_that_waits_for_the_others_is_alive(groups):
    first = stable(groups)
    second = join(groups)
    assert groups.get("g").state is GroupState.PREPARING
    assert refused(groups.heartbeat, "g", first.member_id, 1, 9_000) == 27
    groups.advance(18_000)
    assert (
        second.member_id in groups.get("g").members
    )  # it said nothing for 18 s, but its join is being answered
    groups.advance(19_000)
    assert list(groups.get("g").members) == [second.member_id]
    assert groups.get("g").state is GroupState.COMPLETING


def test_who_does_not_come_back_in_time_is_not_waited_for(groups):
    first = stable(groups)
    second = join(groups, rebalance_timeout_ms=5_000)
    for now in range(0, 60_000, 5_000):
        groups.advance(now)
        if groups.get("g").state is GroupState.PREPARING:
            assert refused(groups.heartbeat, "g", first.member_id, 1, now) == 27
    groups.advance(60_000)
    assert list(groups.get("g").members) == [second.member_id]


def test_a_leader_that_never_divides_the_partitions_is_replaced(groups):
    leader, other = join(groups), None
    leader_waits = groups.get("g")
    groups.sync("g", leader.member_id, 1, {}, 0)
    other = join(groups)
    join(groups, leader.member_id)
    assert leader_waits.state is GroupState.COMPLETING
    look = groups.sync("g", other.member_id, 2, {}, 1_000)
    for now in range(0, 60_000, 5_000):
        groups.heartbeat("g", leader.member_id, 2, now)
        groups.advance(now)
    assert look() is None
    groups.advance(60_000)
    assert refused(look) == 27
    assert list(leader_waits.members) == [other.member_id]


def test_an_id_is_given_before_a_member_is_taken(groups):
    given = join(groups, needs_id=True)
    assert isinstance(given, str)
    assert not groups.get("g").members
    assert join(groups, given, needs_id=True).member_id == given
    assert refused(lambda: join(groups, "made-up", needs_id=True)) == 25


def test_offsets_are_committed_by_members_of_the_generation_only(groups):
    member = stable(groups)
    assert refused(groups.check_commit, "g", "", -1, 0) == 25
    assert refused(groups.check_commit, "g", member.member_id, 0, 0) == 22
    assert groups.check_commit("g", member.member_id, 1, 0).name == "g"
    groups.leave("g", member.member_id, 0)
    assert groups.check_commit("g", "", -1, 0).name == "g"


def waiting_for_others(delay_ms):
    return Groups(
        Centre(
            1,
            profile_of("4.3.0"),
            {"group.initial.rebalance.delay.ms": delay_ms},
            {},
            cluster_id="c",
            now_ms=0,
        )
    )


def test_who_joins_an_empty_group_waits_for_others_and_longer_while_some_come():
    groups = waiting_for_others(3_000)
    join(groups)
    assert groups.next_due_ms() == 3_000
    groups.advance(2_999)
    join(groups, now_ms=2_999)
    groups.advance(3_000)
    assert groups.get("g").state is GroupState.PREPARING
    groups.advance(6_000)
    assert (groups.get("g").state, groups.get("g").generation) == (GroupState.COMPLETING, 1)
    assert len(groups.get("g").members) == 2
    join(groups, now_ms=7_000)  # not empty any more
    assert groups.get("g").state is GroupState.PREPARING
    for member in list(groups.get("g").members):
        join(groups, member, now_ms=7_001)
    assert groups.get("g").generation == 2


def test_no_longer_than_a_rebalance_may_take():
    groups = waiting_for_others(3_000)
    for now in range(0, 5_000, 1_000):
        groups.advance(now)
        join(groups, now_ms=now, rebalance_timeout_ms=4_000)
    assert groups.get("g").generation == 1
