"""The protocol of atomic batches with one rule taken out each: exact tests, or storms, must find every one of them.

`tests/mutants.txt` names them; `test_unit_mutants.py` compares.
"""

from __future__ import annotations

from typing import Any

from mutation import Mutant, source
from unit_storm_groups import GroupStorm

from kafkasafe import journal as j
from kafkasafe import units as u
from kafkasafe.delivery.engine.transactor import Transactor
from kafkasafe.delivery.readings import Readings
from kafkasafe.journal import snapshots
from kafkasafe.journal.endings import Durability
from kafkasafe.journal.members import UnitBatches
from kafkasafe.journal.precedence import Precedence
from kafkasafe.journal.recovery import Recovery
from kafkasafe.units import content, machine, together
from kafkasafe.units.failures import FailurePolicy
from kafkasafe.units.order import Lines
from kafkasafe.units.readings import ReadingOrder
from kafkasafe.units.recovery import UnitReplay
from kafkasafe.units.schedule import Schedule
from kafkasafe.units.together import Sharing
from kafkasafe.units.transitions import Transitions

SEEDS = 12
"""So many storms, at most, until a mutant is found."""


def _no_marker(patch: Any) -> None:
    source(u.Transaction, "begin", "1 + len(self.offsets)", "len(self.offsets)")(patch)
    patch.setattr(Schedule, "mark", lambda *_: None)


MUTANTS = {
    "commit before STAGED is durable": Mutant(
        source(
            Schedule,
            "stage_if_whole",
            "self._out.stage(",
            "transaction.move(Phase.STAGED); self._out.change(); self._out.stage(",
        ),
        "test_nothing_is_committed_before_the_mark_that_all_of_it_is_there_is_durable",
    ),
    "the outcome of a lost transaction is not asked for": Mutant(
        source(
            FailurePolicy,
            "_not_ended",
            "self._transitions.ask_outcome(request.transaction)",
            "transaction = request.transaction; transaction.phase = type(transaction.phase).STAGED;"
            " [setattr(each, 'phase', transaction.phase) for each in transaction.units];"
            " self._transitions.abort_and_requeue(transaction, code, failure.reason)",
        ),
        "test_an_outcome_that_the_marker_shows_is_believed",
    ),
    "committed without the marker": Mutant(
        source(
            Transactor,
            "_succeeded",
            "ours = answer.offset >= 0 and answer.metadata == action.transaction.unit_id.hex()",
            "ours = True",
        ),
        "test_what_timed_out_is_committed_only_if_its_own_marker_says_so",
    ),
    "committed whatever the coordinator says": Mutant(
        source(
            Transactor,
            "_outcome",
            "return u.outcome_of(",
            "return True or u.outcome_of(",
        ),
        "test_what_timed_out_is_committed_only_if_the_coordinator_says_so",
    ),
    "the end of another transaction is believed": Mutant(
        source(u, "outcome_of", " or epoch != grant.epoch + 1", ""),
        "test_the_end_of_another_transaction_decides_nothing",
    ),
    "another unit's marker is believed": Mutant(
        source(
            Transactor,
            "_succeeded",
            "ours = answer.offset >= 0 and answer.metadata == action.transaction.unit_id.hex()",
            "ours = answer.offset >= 0",
        ),
        "test_what_timed_out_is_committed_only_if_its_own_marker_says_so",
    ),
    "the stored epoch is another one": Mutant(
        source(UnitReplay, "recover_staged", "begun.producer_epoch", "begun.producer_epoch + 1"),
        "test_the_next_life_sends_the_same_commit",
    ),
    "a STAGED mark counts after a later BEGUN": Mutant(
        lambda patch: patch.setattr(UnitReplay, "recover_begun", lambda *_: None),
        "test_a_unit_that_no_mark_calls_staged_is_prepared_again_behind_a_fence",
    ),
    "no marker": Mutant(
        _no_marker,
        "test_a_unit_is_not_staged_before_its_marker_is_taken",
    ),
    "committed before those in front of it": Mutant(
        source(
            Schedule,
            "_may_end",
            "return self._lines.is_first(transaction, transaction.lines)",
            "return True",
        ),
        "test_units_of_a_partition_are_committed_in_order_and_appended_side_by_side",
    ),
    "an id is not fenced after an unanswered commit": Mutant(
        source(u.Units, "ended", "action not in tid.attempts", "True"),
        "test_an_id_whose_commit_was_once_unanswered_is_fenced_before_it_is_used_again",
    ),
    "ENDED before the answer": Mutant(
        source(
            Schedule,
            "_go_on",
            "self._out.ask(EndTxn(tid, tid.turn, transaction))",
            "self._out.ask(EndTxn(tid, tid.turn, transaction)); self._transitions.commit(transaction)",
        ),
        "test_nothing_is_committed_before_the_mark_that_all_of_it_is_there_is_durable",
    ),
    "resolved before ENDED is durable": Mutant(
        source(
            UnitBatches,
            "advance",
            "persist.after.append(UnitEnded(unit, fate))",
            "persist.after.append(UnitEnded(unit, fate)); self._out.ready.ended.append((unit, fate))",
        ),
        "test_a_unit_is_done_when_the_mark_that_says_so_is_durable",
    ),
    "an id is used again before ENDED is durable": Mutant(
        source(
            Transitions,
            "_end",
            "self._lines.leave(entry)",
            "self._lines.leave(entry); getattr(entry, 'tid', None) and self.release(entry)",
        ),
        "test_a_transactional_id_is_used_again_only_when_the_outcome_before_is_durable",
    ),
    "what stands behind is not prepared again": Mutant(
        source(Transitions, "requeue_followers", "other.number <= entry.number", "True"),
        "test_what_was_appended_behind_a_failed_unit_is_aborted_with_it",
    ),
    "the place in the log is not looked at": Mutant(
        lambda patch: patch.setattr(Lines, "in_order", lambda *_: True),
        "test_what_came_into_the_log_before_an_earlier_unit_is_prepared_again",
    ),
    "what waits behind keeps its transactional id": Mutant(
        source(Transitions, "requeue_followers", "other.phase not in _UNDER_WAY", "not other.issued"),
        "test_what_waits_behind_a_unit_that_is_prepared_again_leaves_it_a_transactional_id",
    ),
    "late answers count": Mutant(lambda patch: patch.setattr(machine, "_valid", lambda *_: True)),
    "orphans of an earlier life are not fenced": Mutant(
        source(
            UnitReplay,
            "recovered",
            "if tid.transaction is None and not paused:",
            "if False:",
        ),
        "test_the_next_life_sends_the_same_commit",
    ),
    "begun before its partitions are chosen": Mutant(
        source(Precedence, "is_in_front", "return False  # the topic's", "return True  # the topic's"),
        "test_what_comes_to_disk_when_its_topic_is_known_is_divided_before_it_is_begun",
    ),
    "a turn is where the mark is": Mutant(
        source(Lines, "renumber", "key=lambda unit: unit.accepted_at", "key=lambda unit: unit.number"),
        "test_what_was_divided_keeps_its_turn_when_its_first_segment_is_gone",
    ),
    "refused with another of its transaction": Mutant(
        source(FailurePolicy, "_inside", "if lasting and not transaction.is_shared:", "if lasting:"),
        "test_what_is_refused_of_one_leaves_the_others_their_turn",
    ),
    "the STAGED marks of others count after a BEGUN": Mutant(
        source(UnitReplay, "_void", "self._staged.pop(tid, [])", "self._staged.pop(tid, [])[:1]"),
        "test_a_transaction_that_the_first_of_them_left_is_committed_for_none",
    ),
    "the STAGED marks of others count after one is dropped": Mutant(
        source(UnitReplay, "recover_ended", "if mark.outcome is m.UnitOutcome.DROPPED:", "if False:"),
        "test_a_transaction_of_which_one_was_dropped_is_committed_for_none",
    ),
    "what shares a transaction is taken apart in the next life": Mutant(
        source(UnitReplay, "recover_staged", "if tid.grant != grant:", "if True:"),
        "test_the_next_life_commits_all_of_a_transaction_with_one_end",
    ),
    "an id is used again when one of several is over": Mutant(
        source(u.Units, "over", " and all(each.phase is Phase.OVER for each in transaction.units)", ""),
        "test_the_transactional_id_is_free_when_the_ends_of_all_are_durable",
    ),
    "what stands between is passed": Mutant(
        source(
            Sharing,
            "gather",
            "heads[at] is other if at in heads else self._is_right_after(other, at, ahead)",
            "True",
        ),
        "test_nothing_that_stands_between_is_passed",
    ),
    "what was not chosen is committed with what was": Mutant(
        source(Schedule, "_are_decided_here", "self._only.issuperset(", "self._only.intersection("),
        "test_only_what_is_chosen_as_a_whole_is_committed",
    ),
    "STAGED of the first alone": Mutant(
        source(
            Schedule, "stage_if_whole", "for each in transaction.units]", "for each in transaction.units[:1]]"
        ),
        "test_what_waits_on_a_partition_shares_a_transaction_and_each_keeps_its_steps",
    ),
    "those who part stand in another order": Mutant(
        source(Lines, "part", "reversed(transaction.units)", "transaction.units"),
        "test_what_stands_behind_them_goes_back_when_they_do",
    ),
    "what failed together goes together again": Mutant(
        source(together, "_fellows", " >> (_FEWER_BITS * unit.tries)", ""),
        "test_what_is_refused_of_one_leaves_the_others_their_turn",
    ),
    "those behind stay when one of several is given up": Mutant(
        source(Transitions, "_break_up", "self.requeue_followers(transaction)", "pass"),
        "test_what_stands_behind_goes_back_when_one_of_them_is_given_up",
    ),
    "given up before STAGED is durable": Mutant(
        source(Transitions, "give_up", "if transaction.phase is Phase.STAGING:", "if False:"),
        "test_one_that_is_given_up_before_staged_is_durable_leaves_the_others_their_turn",
    ),
    "what was not committed together goes together again": Mutant(
        source(Transitions, "outcome", "each.fail()", "pass"),
        "test_what_stands_behind_them_goes_back_when_they_do",
    ),
    "what is refused is begun with what stands before it": Mutant(
        source(Schedule, "is_ready", "unit.phase is Phase.WAITING\n        and ", ""),
        "test_what_is_refused_is_not_begun_with_what_stands_before_it",
    ),
    "a name shares the transaction of others": Mutant(
        source(together, "_fellows", "unit.transactional_id or ", ""),
        "test_what_has_a_name_goes_by_itself",
    ),
    "others share the transaction of a name": Mutant(
        source(Sharing, "gather", "most = _fellows(unit, self._most)", "most = self._most"),
        "test_what_has_a_name_goes_by_itself",
    ),
    "any number of bytes share a transaction": Mutant(
        source(Sharing, "gather", "_size(other) <= room\n", "True\n"),
        "test_they_are_not_more_than_a_transaction_should_hold",
    ),
    "any number of units share a transaction": Mutant(
        source(together, "_fellows", "most >> (", "1_000_000 >> ("),
        "test_they_are_not_more_than_a_transaction_should_hold",
    ),
    "BEGUN of the first alone": Mutant(
        source(
            Schedule,
            "_begin_transaction",
            "self._out.begin(",
            "(self._out.begin if each is units[0] else id)(",
        ),
        "test_what_waits_on_a_partition_shares_a_transaction_and_each_keeps_its_steps",
    ),
    "ENDED of the first alone": Mutant(
        source(Transitions, "_end", "for each in units:", "for each in [*units][:1]:"),
        "test_what_waits_on_a_partition_shares_a_transaction_and_each_keeps_its_steps",
    ),
    "STAGED says the places of all": Mutant(
        source(
            Schedule,
            "stage_if_whole",
            "each.placed",
            "tuple(place for one in transaction.units for place in one.placed)",
        ),
        "test_what_waits_on_a_partition_shares_a_transaction_and_each_keeps_its_steps",
    ),
    "ENDED does not say where its batches are": Mutant(
        lambda patch: patch.setattr(UnitBatches, "_places", lambda *_: []),
        "test_where_the_batches_of_a_unit_are_stands_behind_its_end",
    ),
    "a log is surveyed while a transaction is open": Mutant(
        source(Schedule, "abort_on_partition", "return vacant", "return True"), first=302702, recreated=True
    ),
    "a unit's batch is not the newest": Mutant(
        source(
            snapshots,
            "_newest",
            "if batch.identity is not None",
            "if batch.identity is not None and batch.unit is None",
        ),
        first=9002083,
    ),
    "new ids are about batches of units": Mutant(
        source(Recovery, "_recover_identities", "if batch.state is BatchState.JOINED:", "if False:"),
        first=245,
        recreated=True,
    ),
    "where a released batch ends is forgotten by the next life": Mutant(
        source(UnitReplay, "recover_staged", "place.base_offset + place.count - 1)", "-1)"),
        "test_what_is_staged_in_front_of_what_was_committed_before_it_is_asked_about",
    ),
    "where a committed unit ends is forgotten by the next life": Mutant(
        source(UnitReplay, "recover_ended", "self._lines.raise_floors(unit, alone=False)", "pass"),
        "test_what_is_staged_in_front_of_what_was_committed_before_it_is_asked_about",
    ),
    "what an earlier life staged out of order is prepared again unasked": Mutant(
        source(u.TransactionalId, "read_grant", "self.fresh = True", "pass"),
        "test_what_is_staged_in_front_of_what_was_committed_before_it_is_asked_about",
    ),
    "offsets of a group have no order": Mutant(
        lambda patch: patch.setattr(content.UnitContent, "lines", content.UnitContent.destinations),
        "test_units_that_move_the_same_offset_are_committed_in_order",
    ),
    "an offset is written before those before it are committed": Mutant(
        source(
            Schedule,
            "_write_offsets",
            "if not self._lines.is_first(transaction, transaction.group_lines):",
            "if False:",
        ),
        groups=True,
    ),
    "an offset that was not answered is written again with protocol 1": Mutant(
        source(FailurePolicy, "_no_offsets", "and transaction.grant.protocol < 2", "and False"),
        "test_an_offset_that_was_not_answered_is_aborted_where_it_could_come_late",
    ),
    "offsets of two members share a transaction": Mutant(
        source(together._Members, "admit", "return all(", "return True or all("),
        "test_offsets_in_another_name_have_their_own_transaction",
    ),
    "the oldest offsets of a transaction are committed": Mutant(
        source(
            together,
            "_newest_offsets",
            "of_group.update({(at.topic, at.partition): at for at in offsets.positions})",
            "[of_group.setdefault((at.topic, at.partition), at) for at in offsets.positions]",
        ),
        groups=True,
    ),
    "what shares the transaction of a refused consumer is dropped with it": Mutant(
        source(
            Transitions,
            "leave_group",
            "if any(offsets.group == group for offsets in each.offsets):",
            "if True:",
        ),
        "test_a_group_that_refuses_a_consumer_leaves_the_others_of_the_transaction_their_turn",
    ),
    "what goes on from a dropped unit stays": Mutant(
        source(Transitions, "follow_drops", "if unit.phase is Phase.REFUSED:", "if True:"),
        first=12,
        groups=True,
    ),
    "what is accepted later of a dropped reading stays": Mutant(
        source(u.Units, "closed", "if self._readings.is_broken(unit):", "if False:"),
        "test_what_is_accepted_later_of_the_same_reading_is_dropped_and_of_the_next_one_is_not",
    ),
    "the next reading is dropped with the last": Mutant(
        source(ReadingOrder, "is_broken", "unit.reading(line).number <= self._broken[line]", "True"),
        "test_what_is_accepted_later_of_the_same_reading_is_dropped_and_of_the_next_one_is_not",
    ),
    "what was dropped before it was written is written": Mutant(
        lambda patch: patch.setattr(j.Persist, "leave_out_void", lambda *_: None),
        "test_the_journal_does_not_write_a_unit_that_is_dropped_before",
    ),
    "the same records are committed by two readings": Mutant(
        lambda patch: patch.setattr(ReadingOrder, "is_superseded", lambda *_: False), groups=True
    ),
    "what another reading has processed again stays until its turn": Mutant(
        source(Schedule, "advance", "self._transitions.drop_superseded()", "pass"),
        "test_what_another_reading_has_processed_again_ends_with_the_commit_in_one_group",
    ),
    "what another reading has processed again is written": Mutant(
        source(u.Units, "closed", "elif self._readings.is_superseded(unit):", "elif False:"),
        "test_what_another_reading_has_processed_again_is_never_written_if_it_comes_after_the_commit",
    ),
    "readings of earlier incarnations are one": Mutant(
        lambda patch: patch.setattr(UnitReplay, "recover_readings", lambda *_: None), groups=True
    ),
    "an earlier version's order of offsets is believed": Mutant(
        source(
            UnitReplay,
            "recovered",
            "unit.code or not self._lines.is_first(transaction, transaction.group_lines)",
            "unit.code",
        ),
        "test_offsets_that_an_earlier_version_wrote_out_of_order_are_asked_about",
    ),
    "a position is believed after a rebalance": Mutant(
        lambda patch: patch.setattr(Readings, "suspect", lambda *_: None), first=12, groups=True
    ),
    "a reading goes on after a drop": Mutant(
        source(Readings, "goes_on", "if run.broken or ", "if "), groups=True
    ),
    "an offset is believed while a transaction may change it": Mutant(
        source(GroupStorm, "_stable", "if any(", "if False and any("), groups=True
    ),
    "units of an earlier life go in the order of the log": Mutant(
        source(Lines, "renumber", "key=lambda unit: unit.accepted_at", "key=lambda unit: unit.position"),
        "test_what_was_divided_keeps_its_turn_in_the_next_life",
    ),
    "batches of an earlier life's unit are in the order of the log": Mutant(
        source(
            u.Unit,
            "read_staged",
            "self.batches.sort(key=lambda batch: order.get(batch.position, len(order)))",
            "pass",
        ),
        "test_a_staged_unit_has_its_batches_in_the_order_in_which_they_were_staged",
    ),
    "offsets without records are at the end of what was written with them": Mutant(
        source(Durability, "persisted", "default=begin", "default=end_position - 1"),
        "test_offsets_without_records_stay_in_the_spool_until_the_group_has_them",
    ),
}
