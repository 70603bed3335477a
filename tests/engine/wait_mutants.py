"""What is done with batches that wait, with one rule taken out each: an exact test must find every one of them.

Small ones become one, long backlogs are packed while they are read back, and pauses end when another broker leads or a topic
returns. `tests/mutants.txt` names the mutants; `test_wait_mutants.py` compares.
"""

from __future__ import annotations

from typing import Any

from mutation import Change, Mutant, nothing, source

from kafkasafe import journal as j
from kafkasafe.delivery.engine import gathering, lane_keeper
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.gathering import Gathering
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.sender import Sender
from kafkasafe.delivery.engine.unit_pauses import UnitPauses
from kafkasafe.journal import gathering as joining
from kafkasafe.journal.answers import Answers
from kafkasafe.journal.dividing import Divider
from kafkasafe.journal.gathering import Gatherer
from kafkasafe.journal.machine import Machine
from kafkasafe.journal.packing import RereadBacklogs
from kafkasafe.journal.recovery import Recovery


def _offers(old: str, what: str, new: str = "") -> Mutant:
    """A batch that is not only waiting is offered as well."""
    change = source(Gatherer, "_may_gather", old, new)
    return Mutant(change, "test_any_other_batch_ends_what_is_offered", {"what": what})


def _bounds(old: str, new: str = "") -> Mutant:
    return Mutant(
        source(Gatherer, "gather", old, new), "test_it_becomes_neither_too_much_nor_is_it_too_little"
    )


def _made(
    old: str, new: str = "pass", test: str = "test_it_has_their_records_their_sequences_and_their_place"
) -> Mutant:
    return Mutant(source(Gatherer, "gathered", old, new), test)


def _checked(old: str, what: str, new: str = "") -> Mutant:
    change = source(Gathering, "_gather", old, new)
    return Mutant(change, "test_what_is_no_longer_as_the_journal_offered_it_stays_as_it_is", {"what": what})


def _became(old: str, new: str = "pass") -> Mutant:
    return Mutant(source(Gathering, "_gather", old, new), "test_each_finds_its_records_in_what_they_became")


def _room(old: str, new: str = "") -> Mutant:
    return Mutant(
        source(Gathering, "_has_room", old, new), "test_what_little_room_there_is_is_left_to_what_is_new"
    )


def _size(old: str, new: str, where: str) -> Mutant:
    return Mutant(
        source(Gathering, "_decoded", old, new), "test_keys_values_and_headers_count", {"where": where}
    )


def _for_any_settings(old: str) -> Change:
    def change(patch: Any) -> None:
        source(gathering, "gather_bytes", old, "")(patch)
        patch.setattr(lane_keeper, "gather_bytes", gathering.gather_bytes)

    return change


def _paused(name: str, old: str, new: str, test: str = "test_elections_make_no_storm_of_requests") -> Mutant:
    return Mutant(source(Sender, name, old, new), test)


def _reread(
    name: str,
    old: str,
    new: str = "pass",
    test: str = "test_a_mark_brings_back_what_it_speaks_of_and_no_other_partition",
    of: type = Recovery,
) -> Mutant:
    return Mutant(source(of, name, old, new), test)


_REPLACED = "persist.marks.append(m.Replaced(batch.position, place, 1))"
_INSERT = "partition.queue.insert("
_OFFERED = "test_nothing_is_offered_that_waits_for_others_or_for_what_was_lost"

MUTANTS: dict[str, Mutant] = {
    # Which batches become one.
    "gathers what is under way": _offers("batch.state is BatchState.PREPARED\n", "is under way", "True\n"),
    "gathers what is in memory": _offers("and batch.durable\n", "is in memory", "\n"),
    "gathers what is being written": _offers("batch.writing or ", "is being written"),
    "gathers what an earlier life may have sent": _offers(
        "batch.former_life or ", "may have been sent by an earlier life"
    ),
    "gathers what is put back": _offers(" or batch.revived", "was lost, and is sent again"),
    "gathers what was sent": _offers("batch.tries or ", "was sent"),
    "gathers what may still arrive": _offers("batch.unanswered or ", "may still arrive"),
    "gathers what was refused": _offers(" or batch.fault.code", "was refused"),
    "gathers what has parts": _offers("batch.heirs or ", "has parts that are not finished"),
    "gathers what had no partition": _offers(" or batch.origin >= 0", "had no partition"),
    "gathers parts and copies": _offers(
        "and batch.rank == (batch.position,)\n", "is a part, or was copied", "\n"
    ),
    "gathers batches of units": _offers("and batch.unit is None\n", "belongs to a unit", "\n"),
    "gathers large batches": _offers("and self._is_small(batch.size_bytes)\n", "is large", "\n"),
    "gathers old batches": _offers("and not self._clock.is_old(batch, now_ms)\n", "is old", "\n"),
    "gathers across a gap of sequences": Mutant(
        nothing(joining, "_goes_on", result=True),
        "test_any_other_batch_ends_what_is_offered",
        {"what": "has a later sequence"},
    ),
    "gathers across epochs": Mutant(
        source(
            joining,
            "_goes_on",
            "b.fields == (a.producer_id, a.producer_epoch, add_sequence(a.last_sequence, 1))",
            "b.base_sequence == add_sequence(a.last_sequence, 1)",
        ),
        "test_any_other_batch_ends_what_is_offered",
        {"what": "has another epoch"},
    ),
    "sequences do not begin again": Mutant(
        source(joining, "_goes_on", "add_sequence(a.last_sequence, 1)", "a.last_sequence + 1"),
        "test_sequences_go_on_behind_the_last_one_there_is",
    ),
    "gathers while lost ones are put back": Mutant(
        source(Gatherer, "_may_gather", "and partition.number not in self._revivals.by_destination\n", "\n"),
        _OFFERED,
    ),
    "gathers what waits for earlier lives": Mutant(
        source(Gatherer, "_may_gather", "and not self._precedence.is_held(partition, batch)\n", "\n"),
        _OFFERED,
    ),
    "gathers what is to be kept apart": Mutant(
        source(Gatherer, "gather", "and partition.gathers", ""), _OFFERED
    ),
    "gathers any number of bytes": _bounds("room < 0 or "),
    "gathers any number of batches": _bounds("len(run) == _GATHER_MOST or "),
    "gathers two": _bounds("len(run) >= GATHER_LEAST", "len(run) >= 2"),
    "gathers before an answer": Mutant(
        source(
            Machine,
            "_flow",
            "if partition.window.answered and in_flight.any:",
            "if in_flight.any:",
        ),
        "test_nothing_is_gathered_before_an_answer_says_that_what_waits_waits_for_its_turn",
    ),
    "what was refused is gathered again": Mutant(
        source(Answers, "refused", "if batch.gathered and (final or scope is Scope.BATCH):", "if False:"),
        "test_what_is_refused_as_it_is_keeps_the_next_ones_apart",
        {"code": 10, "apart": True},
    ),
    "no leader keeps batches apart": Mutant(
        source(
            Answers,
            "refused",
            "if batch.gathered and (final or scope is Scope.BATCH):",
            "if batch.gathered:",
        ),
        "test_what_is_refused_as_it_is_keeps_the_next_ones_apart",
        {"code": 6, "apart": False},
    ),
    # What the one is.
    "the sequences of the first alone": _made(
        "first.identity.fields, count)", "first.identity.fields, first.count)"
    ),
    "the sequences of the last": _made(
        "first.identity.fields, count)", "batches[-1].identity.fields, count)"
    ),
    "one is left out": _made(
        "sum(batch.count for batch in batches)", "sum(batch.count for batch in batches[1:])"
    ),
    "behind all that waits": _made(
        "partition.queue.insert(partition.queue.near.index(first), made)", "partition.queue.append(made)"
    ),
    "written with what is new": _made("persist.keep_whole()"),
    "the first alone is replaced on disk": _made(_REPLACED, f"batch is first and {_REPLACED}"),
    "the last is not replaced on disk": _made(_REPLACED, f"batch is batches[-1] or {_REPLACED}"),
    "nothing is replaced on disk": _made(_REPLACED),
    "nobody knows where it stands": _made(_INSERT, f"made.parent = None; {_INSERT}"),
    "its place may be deleted": _made(_INSERT, f"first.heirs -= 1; {_INSERT}"),
    "none of theirs may be deleted": _made("kept=batch is first", "kept=True"),
    "as old as the first": _made("max(batch.max_timestamp for batch in batches)", "first.max_timestamp"),
    "one is sent as well": _made(
        "partition.queue.remove(batch)", "batch is batches[-1] or partition.queue.remove(batch)"
    ),
    "sent before it is durable": _made(
        "self._sealer.write(made)",
        "self._sealer.write(made); made.durable = True; made.on(BatchEvent.DURABLE)",
    ),
    "written once for each of them": Mutant(
        source(j.Persist, "leave_to", "if place == len(parts):", "if True:"),
        "test_it_has_their_records_their_sequences_and_their_place",
    ),
    "the last group is not read to its end": Mutant(
        nothing(Recovery, "recovered_log"),
        "test_the_next_life_and_whoever_looks_into_the_lane_find_it_in_their_place",
        {"last": True},
    ),
    "the next life may delete its place": Mutant(
        source(Recovery, "_drop_parents", "if not parent.heirs:", "if True:"),
        "test_the_next_life_and_whoever_looks_into_the_lane_find_it_in_their_place",
        {"last": True},
    ),
    # How they become one.
    "made of what is under way": _checked("batch.state is j.BatchState.PREPARED and ", "state"),
    "made of what was sent": _checked(" and not batch.tries", "tries"),
    "made of those that are there": _checked("len(parents) < len(run) or ", "missing"),
    "made of what is done": _checked("each.done or ", "done"),
    "made of what failed": _checked(" or each.error", "error"),
    "what cannot be read ends the engine": _checked(
        "except SpoolError:", "unreadable", "except ZeroDivisionError:"
    ),
    "read again at each answer": Mutant(
        source(Gathering, "_gather", "lane.journal.keep_apart(run[0].destination)", "pass"),
        "test_what_shows_its_size_when_it_is_read_is_read_once",
    ),
    "those that do not fit are left out": Mutant(
        source(
            Gathering,
            "_gather",
            "run, parents = run[: len(columns)], parents[: len(columns)]",
            "pass",
        ),
        "test_what_compression_makes_small_does_not_become_a_batch_that_readers_cannot_hold",
        {"size_bytes": 90_000, "most": 11},
    ),
    "each at the place of the first": _became("parcel.join(child, shift)", "parcel.join(child, 0)"),
    "each a record behind the one before": _became("shift += parcel.count", "shift += 1"),
    "bytes of what is gathered stay in memory": _became("self._disk.drop(parcel)"),
    "they stay beside it": _became("del lane.parcels[batch.handle]"),
    "one record of each": _became("sum(parcel.count for parcel in parents)", "len(parents)"),
    "only the first is done": Mutant(
        source(Ledger, "finish", "parcel.parents or (parcel.parent,)", "(parcel.parent,)"),
        "test_what_waited_through_an_outage_goes_in_a_few_requests",
    ),
    "in the wrong order": Mutant(
        source(gathering, "joined", "headers = {}", "headers, columns = {}, columns[::-1]"),
        "test_what_waited_through_an_outage_goes_in_a_few_requests",
    ),
    "a full spool gets fuller": _room("and ledger.room.used < config.spool_max_bytes // 2"),
    "a full disk gets fuller": _room("and ledger.room.free > 4 * FREE_BYTES"),
    "a disk that fails gets more": _room("not (lane.write_backlog.attempt or lane.write_backlog)", "True"),
    "any number of bytes out of their compression": _size("if room < 0:", "if False:", "values"),
    "keys take nothing": _size("itertools.chain(found.keys, found.values)", "found.values", "keys"),
    "values take nothing": _size("itertools.chain(found.keys, found.values)", "found.keys", "values"),
    "headers take nothing": _size(
        "room -= sum(len(value) for headers in found.headers.values() for _, value in headers if value)",
        "pass",
        "headers",
    ),
    "gathers what has its own time": Mutant(
        _for_any_settings(" or config.delivery_timeout_s is not None"),
        "test_what_is_large_and_what_the_user_times_goes_as_it_is",
    ),
    # A long backlog is packed while it is read back.
    "what a mark speaks of stays packed": _reread(
        "reach_any", "self.reach(partition, position)", of=RereadBacklogs
    ),
    "a mark brings back what is packed of all partitions": _reread(
        "reach_any", " and partition.queue.packed.has(position)", "", of=RereadBacklogs
    ),
    "what may have been sent stays packed": _reread(
        "recovered_log",
        "self._backlogs.reach_sent(partition)",
        test="test_what_may_have_been_sent_is_in_doubt_though_lost_ones_come_before_it",
    ),
    "what is packed keeps its ids": _reread(
        "_recover_identities",
        "partition.queue.packed.forget_identities()",
        test="test_ids_that_are_taken_back_are_taken_back_from_what_is_packed",
    ),
    "new ids are packed after batches that have none": _reread(
        "_packable_next",
        "if without and batch.identity is not None:",
        "if False:",
        "test_ids_that_are_taken_back_are_taken_back_from_what_is_packed",
        RereadBacklogs,
    ),
    "what was moved comes before all that is packed": _reread(
        "recover_batch",
        "next(iter(moved.rank), moved.position)",
        "-1",
        "test_what_was_moved_brings_back_what_comes_before_it",
    ),
    "what is packed is believed though marks are lost": _reread(
        "recover_lost",
        "self._backlogs.reach(partition, ANYWHERE)",
        test="test_a_lost_group_brings_back_everything",
    ),
    # What was copied forward is divided.
    "the parts of a copy are as old as the copy": Mutant(
        source(Divider, "replaced", "if batch.is_copy and not kept:", "if False:"),
        "test_the_parts_of_a_batch_that_was_copied_forward_are_as_old_as_its_records",
        {"copies": 1, "together": True},
    ),
    "the parts of a copy are as old as its records only in name": Mutant(
        source(Divider, "replaced", "m.Replaced(batch.written_at, first", "m.Replaced(batch.position, first"),
        "test_the_parts_of_a_batch_that_was_copied_forward_are_as_old_as_its_records",
        {"copies": 2, "together": False},
    ),
    "what has another part is replaced once more": Mutant(
        source(Divider, "replaced", " and not kept", ""),
        "test_a_part_that_was_copied_and_is_divided_says_nothing_of_the_batch_that_it_was_part_of",
    ),
    "the parts of a refused part are as old as it is": Mutant(
        source(Divider, "replaced", "batch.origin if refused", "-1 if refused"),
        "test_the_parts_of_a_refused_part_are_as_old_as_its_records",
        {"copies": 0},
    ),
    "parts that were copied stay where they were first read": Mutant(
        source(Recovery, "recover_batch", "if known.rank != moved.rank:", "if False:"),
        "test_parts_that_were_copied_are_before_later_batches_though_the_segment_of_the_whole_is_gone",
    ),
    # Pauses that end when another one leads.
    "no pause ends early": Mutant(
        source(Sender, "let_out", "self._context.post(due)", "pass"),
        "test_a_pause_ends_when_another_broker_leads",
        {"seed": 0, "in_doubt": False},
    ),
    "any metadata end a pause": Mutant(
        nothing(Sender, "_has_news", result=True), "test_elections_make_no_storm_of_requests"
    ),
    "elections end every pause": _paused("let_out", " and self._calm_in_s(*address) <= 0", ""),
    "who was asked is not noted": _paused("send", "self.tries(*address)", "self._context.leader(*address)"),
    "another leader ends the pause after a refusal": _paused(
        "_has_news",
        " and (tried is None or not refused)",
        "",
        "test_another_leader_refuses_as_the_one_before",
    ),
    "a topic that returns ends no pause": _paused(
        "wait",
        "if not wait.at_least_s:",
        "if not wait.at_least_s and not wait.refused:",
        "test_the_pauses_of_all_lanes_end",
    ),
    "a topic that may be seen again ends no pause of an atomic batch": Mutant(
        source(
            UnitPauses, "begin", "again.code in DESTINATION_CODES", "again.code in DESTINATION_CODES - {29}"
        ),
        "test_a_topic_that_is_allowed_for_a_few_seconds_takes_what_waits",
        {"atomic": True},
    ),
    "stale metadata end every pause": Mutant(
        source(Sender, "_has_news", " and (tried is None or not refused)", ""),
        "test_metadata_of_a_stale_broker_end_few_pauses_and_count_for_no_answer",
        {"named": 1.0, "begun": False},
    ),
    "another topic ends no pause": Mutant(
        source(Sender, "_has_news", "if another_topic(former_id, topic_id):", "if False:"),
        "test_what_was_refused_for_a_former_topic_goes_to_the_new_one_at_once",
        {"atomic": False},
    ),
    "another topic ends no pause of an atomic batch": Mutant(
        source(UnitPauses, "_has_news", "another_topic(", "False and another_topic("),
        "test_what_was_refused_for_a_former_topic_goes_to_the_new_one_at_once",
        {"atomic": True},
    ),
    "a leader that came during the request is no news": _paused(
        "wait",
        "if self._has_news((topic, partition), refused=wait.refused):",
        "if False:",
        "test_nothing_pauses_for_a_leader_that_is_none_any_more",
    ),
    "nothing tries a broken disk again": Mutant(
        source(
            DiskWriter,
            "_write_group",
            "probes = not persist and lane.write_backlog.attempt > 0",
            "probes = False",
        ),
        "test_the_disk_is_known_to_work_again_though_nothing_is_left_to_write",
    ),
    "the journal does not learn that a write failed": Mutant(
        source(DiskWriter, "_stall", "lane.journal.write_failed(lane.write_backlog.batches)", "pass"),
        "test_the_disk_is_known_to_work_again_though_nothing_is_left_to_write",
    ),
}
