"""The rules of docs/design-*.md, and the test of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGES = sorted((HERE.parent / "docs").glob("design*.md"))

TESTS = {
    "A request of a rebalance listener": "test_a_listener_of_coroutines_seeks_and_commits_before_records_are_handed_out",
    "An answer may come between two polls": "test_members_that_are_polled_in_turns_come_to_an_end",
    "New metadata may be needed": "test_metadata_that_are_asked_for_while_a_request_is_under_way",
    "A crash leaves bytes out": "test_damage_in_the_last_groups_of_a_killed_owner_is_no_torn_tail",
    "A log cannot tell that its own first": "test_groups_that_went_with_the_end_of_a_segment_are_told_as_lost_groups",
    "A gathered batch was never sent": "test_the_next_life_delivers_what_was_gathered_once_and_in_its_place",
    "No later group proves the last group": "test_the_next_life_delivers_what_was_gathered_once_and_in_its_place",
    "Bytes that recovery skipped": "test_what_is_whole_behind_a_torn_batch_is_kept_and_the_torn_one_is_never_taken_for_damage",
    "The first batch under an id goes alone": "test_the_first_batch_of_an_id_goes_alone_then_five",
    "A request names the id of its topic": "test_batches_in_flight_keep_their_order_in_the_new_topic",
    "Error 45 on a resend": "test_answers_lost_to_a_living_producer",
    "Retention and loss look alike": (
        "test_old_brokers_that_forgot_us_without_a_reason_may_have_lost_what_they_acknowledged"
    ),
    "A survey believes the metadata's topic id": "test_a_survey_does_not_read_the_log_of_another_topic",
    "Without topic ids": "test_what_is_left_at_its_place_proves_that_the_topic_is_the_same",
    "Present is not committed": "test_what_the_leader_has_is_probed_before_it_counts",
    "Former incarnations' ids are never bumped": "test_former_ids_are_left_not_bumped",
    "Marks apply in the order": "test_marks_keep_their_order",
    "After a failed fsync": "test_after_a_fault_at_any_call_nothing_is_lost_or_doubled",
    "Segments are deleted one by one": "test_the_tests_find",
    "The unproven tail of a recovered log": "test_the_tests_find",
    "Decisions are written before batches": "test_a_full_disk",
    "The reserve is for marks alone": "test_if_data_took_the_reserve_a_full_disk_would_stay_full",
    "A default directory's name": "test_another_spelling_of_the_address_delivers_what_the_former_left",
    "Records for one cluster never": "test_another_cluster_gets_nothing",
    "An address does not identify a cluster": "test_one_address_that_leads_astray_and_brokers_that_do_not_say",
    "A copy in `rejected/` is durable": "test_a_crash_at_any_moment_leaves_a_batch_in_one_place",
    "A file name in `rejected/` is never used again": "test_the_name_of_a_file_that_was_resent_is_not_used_again",
    "A resend lists `rejected/`": "test_records_are_resent_beside_a_living_producer",
    "A path does not identify": "test_a_deploy_that_switches_a_link_leaves_each_producer_in_its_own_directory",
    "An fsync covers a file": "test_what_is_called_durable_is_there_at_that_moment",
    "Delivered records do not fill the page cache": "test_the_system_keeps_its_copy_of_batches_that_will_be_read",
    "A file that was cut grows back": "test_a_segment_that_is_cut_is_never_written_to_again",
    "A moved lane is fetched by one rename": "test_a_crash_in_a_restoration_loses_nothing_without_a_word",
    "A released segment's successor": "test_a_segment_is_not_released_before_what_replaces_it_is_durable",
    "A lane is offered for adoption": "test_lanes_of_dead_processes_are_found_once_and_only_with_content",
    "In a forked child the lock's file": "test_a_forked_child_neither_holds_nor_releases_the_lock",
    "The codec of host names is imported": "test_a_fork_leaves_no_half_of_the_codec_of_host_names",
    "In a forked child no producer ends": "test_a_child_of_a_child_is_refused_whatever_ends_while_it_is_told",
    "An error that is kept is raised": "test_an_error_that_is_raised_again_does_not_keep_those_who_had_it",
    "A dropped producer does not wait": "test_producers_that_are_dropped_one_after_the_other",
    "Restored batches have no id": (
        "test_the_next_life_asks_about_what_was_sent_before_lost_ones_came_back_in_front_of_it"
    ),
    "A lost batch may come back": (
        "test_an_acknowledged_batch_is_not_put_back_while_an_older_request_with_it_may_arrive"
    ),
    "A log that was cut may have grown": (
        "test_what_was_sent_to_a_log_that_was_cut_is_looked_for_in_all_of_it"
    ),
    "A mark of new ids names": "test_a_mark_of_new_ids_names_what_is_acknowledged_but_not_marked_yet",
    "The REVIVED mark names": "test_what_was_given_up_stays_given_up",
    "An election counts as looked at": "test_an_election_is_looked_at_until_the_leader_answers",
    "A search that began after the beginning of a loss": (
        "test_a_batch_is_searched_for_again_from_where_a_loss_begins"
    ),
    "Recovery makes the check of each change of leader": (
        "test_the_next_life_asks_about_each_leader_that_acknowledged_something"
    ),
    'With `spool="on_error"`, a batch that the disk': (
        "test_a_copy_that_a_failed_write_left_on_disk_is_not_sent_again"
    ),
    "A position promises nothing": "test_kill_9_loses_no_more_than_was_not_acknowledged",
    "A gap before an earlier incarnation's": "test_a_hole_that_is_a_loss_in_the_cluster_is_reported_as_that",
    "An explanation outlives the segment": (
        "test_a_gap_that_a_power_cut_left_is_no_loss_when_the_segment_that_said_so_is_gone"
    ),
    "An iteration over a partition's queue": "test_a_backlog_is_the_queue_that_it_would_be_unpacked",
    "After an unexpected error": "test_a_producer_that_ends_without_memory_leaves_its_lane_as_a_killed_one_does",
    "Two clocks run": "test_a_machine_that_slept_waits_for_its_own_sockets_but_not_for_brokers_that_forgot",
    "A metadata request may create": "test_a_deleted_topic_stays_deleted_and_is_forgotten",
    "A connection uses the versions": ("test_brokers_that_are_upgraded_get_the_versions_that_they_speak_now"),
    "A crash of kafka-python's loop": (
        "test_a_crash_of_the_network_thread_leaves_nobody_waiting_and_another_takes_its_place"
    ),
    "InitProducerId ends an open transaction": "test_who_was_taken_over_asks_no_further",
    "A connection's responses may be": "test_a_fence_holds_off_what_would_overtake",
    "An end offset at or past the position": "test_position_7_with_the_measured_first_answer",
    "A topic's id is noted": "test_a_topic_made_anew",
    "kafka-python's fetcher distinguishes": "test_what_was_left_of_a_paused_partition_comes_when_it_is_resumed",
    "An interrupt in the middle of a take": "test_interrupted_in_the_middle_of_a_take_nothing_is_lost",
    "A response is decompressed": "test_a_bomb_does_not_go_off",
    "A broker that has just started also answers 3": "test_a_missing_topic_is_told_after_a_while_and_a_missing_right_at_once",
    "A pause ends when the metadata name a topic again": (
        "test_a_topic_that_is_there_for_a_few_seconds_takes_what_waits"
    ),
    "A pause ends when the metadata name another topic": (
        "test_what_was_refused_for_a_former_topic_goes_to_the_new_one_at_once"
    ),
    "One answer proves nothing": "test_one_stray_refusal_after_an_outage_throws_nothing_away",
    "A batch-level refusal": (
        "test_a_batch_that_was_refused_for_too_long_is_divided_and_its_good_records_are_delivered"
    ),
    "A refusal is checked once": "test_a_refusal_of_what_the_leader_has_is_not_believed",
    "Error −1 proves nothing": "test_an_appended_batch_is_delivered_whatever_is_answered",
    "Ctrl-C may raise": "test_ctrl_c_anywhere_in_send",
    "Locks come from": "test_ctrl_c_while_locks_are_taken_leaves_none_taken",
    "No loop with a condition": "test_ctrl_c_in_a_loop_leaves_no_lock_taken",
    "A signal handler may call": "test_signal_handler_in_the_middle_of_send",
    "Neither the pump nor an object of the producer": "test_dropped_producers",
    "The age of the log": "test_nothing_is_sent_before_the_log_stops_saying_that_nothing_is",
    "The patience of `close()`": "test_close_after_an_idle_time",
    "`send` takes no lock": "test_threads_that_send_to_one_topic",
    "A record's first callback has": "test_a_signal_handler_in_the_middle_of_add_callback",
    "An atomic batch gets its fate": "test_ctrl_c_anywhere_in_commit",
    "A thread that waits for a logging thread": "test_a_program_that_configures_its_logging_again",
    "Others' timestamps do not prove": "test_where_others_write_their_records_tell_the_time",
    "A leader whose log begins after": "test_what_was_removed_proves_nothing",
    "Callbacks are handed over": "test_callbacks_have_run_when_flush_returns",
    "A log handler may wait": "test_a_handler_that_flushes_ends_with_the_outage",
    "A callback may wait": "test_slow_callbacks_that_come_to_an_end_only_slow_send_down",
    "Given and chosen partitions": "test_given_and_chosen_partitions_at_first_contact",
    "The sealing thread also notifies": "test_what_was_delivered_before_its_sender_could_see_that_is_seen",
    "A coroutine accepts its record in one step": "test_a_cancelled_send_has_accepted_nothing",
    "KafkaHandler's thread alone": "test_at_debug_on_the_root_it_sends_what_is_logged_and_nothing_of_its_own",
    "If a move fails": "test_a_move_that_fails_skips_nothing",
    "A program that is slow polls": "test_another_member_joins_while_the_program_works_through_what_was_fetched",
    "kafka-python takes a fetch for sent": "test_a_leader_that_the_metadata_do_not_have_yet",
    "A fetch may be on its way to the loop": "test_a_fetch_on_its_way_is_not_committed",
    "A start that is held too high": "test_without_epochs_a_lower_start_is_held_for_a_while_only",
    "The leader epoch in an answer about the start": "test_the_start_of_another_log_is_believed_with_the_proof",
    "A look-up by time may be wrong": "test_random_outages_give_no_wrong_answer",
    "A partition is doubted before its batch": "test_what_is_doubted_is_kept_until_the_log_was_read",
    "An acknowledged batch proves nothing": "test_what_was_acknowledged_behind_a_copy_says_nothing_of_it",
    "STATE says how far everything is finished": "test_what_was_acknowledged_behind_a_batch_in_doubt_is_known_in_the_life_after_the_next",
    "A batch keeps its rank": "test_a_copy_keeps_place_and_id_when_its_old_place_is_gone",
    "The parts of a moved batch": (
        "test_the_parts_of_a_batch_that_was_copied_forward_are_as_old_as_its_records"
    ),
    "Restored batches are released only": "test_healing_is_told_by_the_life_that_ends_it_with_all_of_it",
    "The protocol of a transaction": "test_the_same_end_again_is_answered_as_the_first_was",
    "A commit that is refused because of its epoch": "test_an_end_that_is_refused_with_protocol_1_is_asked_about_before_the_name_is",
    "InitProducerId with the producer's own identity": "test_a_consumer_that_is_out_of_its_group_commits_nothing",
    "A marker's group has": "test_a_group_of_the_same_name_as_the_transactional_id_keeps_its_offsets",
    "A join in progress": "test_partitions_that_a_topic_got_are_assigned",
    "A member that has missed a generation": "test_a_member_that_has_missed_a_generation_does_not_repeat_what_another_has_committed",
    "A damaged control batch": "test_a_hole_in_the_spool_stops_what_was_before_it",
    "A leader that lost its state": "test_one_late_request_does_not_speak_for_those_before_it",
    "The epoch of the last acknowledgement may be too old": "test_an_ack_under_an_earlier_epoch_is_no_loss_when_its_batch_is_gone_from_the_spool",
    "The epoch of an acknowledgement": "test_an_ack_counts_for_the_leader_that_was_sent_to",
    "Callers wait for restored batches": "test_callers_wait_for_what_is_sent_again",
    "The journal counts a held batch": "test_an_outage_reads_nothing_from_disk",
    "A time-out says nothing about a slow link": "test_a_slow_uplink_delivers_and_sends_hardly_anything_twice",
    "A kernel continues to send": "test_what_the_kernel_has_not_sent_goes_with_its_connection",
    "Bytes in a socket's queue": "test_what_is_in_a_sockets_queue_is_not_written_to",
    "A batch that was sealed before its topic": "test_what_was_sealed_before_its_topic_was_known_is_not_overtaken",
    "A forgotten destination keeps": (
        "test_a_forgotten_destination_keeps_its_number_and_goes_on_with_its_sequences"
    ),
    "A batch that has left the spool may be known by its offset alone": (
        "test_batches_of_which_only_the_offsets_are_known_are_no_loss_where_they_are"
    ),
    "Only one method forgets": "test_what_was_forgotten_stays_forgotten",
    "All answers of a walk": "test_a_walk_begins_anew_where_the_leader_changed",
    "After a divergence was": "test_the_seek_after_a_divergence_is_the_last_word",
    "Until that seek": "test_the_file_keeps_the_topic_that_was_read_until_it_is_decided",
    "The position does not cover taken": "test_nothing_waits_between_taking_and_returning",
    "An incarnation waits only for batches that were written before": "test_no_two_lives_ever_wait_for_each_other",
    "A mark in the lane says": "test_what_a_life_held_back_is_held_back_after_its_end_too",
    "An adopted lane is read on another thread": "test_a_lane_that_could_not_be_adopted_is_tried_again",
    "A part of an atomic batch may be divided": (
        "test_what_a_unit_was_divided_into_is_a_part_of_it_when_its_first_segment_is_gone"
    ),
    "An atomic batch does not begin while one": (
        "test_what_comes_to_disk_when_its_topic_is_known_is_divided_before_it_is_begun"
    ),
    "Batches in memory that come before an atomic batch": (
        "test_what_is_in_memory_before_a_unit_goes_to_the_disk_before_it"
    ),
    "A transactional id is free again": (
        "test_a_transactional_id_is_used_again_only_when_the_outcome_before_is_durable"
    ),
    "Nothing is in flight after an atomic batch": (
        "test_what_waits_behind_a_unit_that_is_prepared_again_leaves_it_a_transactional_id"
    ),
    "A transaction that one of its atomic batches left": "test_a_transaction_that_one_of_them_left_is_not_committed",
    "Atomic batches that share a transaction": "test_nothing_that_stands_between_is_passed",
    "An offset is written when all atomic batches before": "test_an_offset_is_written_when_all_before_it_are_committed",
    "An atomic batch that continues from a dropped one": (
        "test_what_goes_on_from_a_dropped_unit_is_dropped_with_it_whatever_its_generation"
    ),
    "A reading that began before another": (
        "test_a_reading_that_began_before_an_earlier_incarnation_moved_the_group_is_void"
    ),
    "A consumer's undecided batches are in one lane": "test_a_member_goes_on_with_another_lane",
    "A refusal is assigned to an atomic batch only": "test_what_is_refused_of_one_is_not_the_others_fate",
    "A partition is surveyed while": "test_a_transaction_ends_in_the_topic_that_has_the_name_now",
    "A batch that returned from a packed backlog": "test_nothing_is_packed_behind_what_came_back_and_is_not_told_yet",
    "What an earlier incarnation released": "test_what_an_earlier_life_released_says_nothing_of_what_was_acknowledged_since",
    "IDENTIFIED marks concern": "test_a_unit_that_waits_behind_what_is_put_back_is_no_plain_batch_to_the_next_life",
    "ENDED does not say where": "test_where_the_batches_of_a_unit_are_stands_behind_its_end",
    "The floor of a partition": "test_what_went_alone_is_in_order_though_its_log_was_cut",
    "`close()` refuses new open batches": "test_close_refuses_new_records_before_it_seals_what_it_has",
    "A second `close()` waits": "test_a_second_thread_returns_when_the_first_has_closed",
    "A hook's `close()` leaves the rest": "test_the_end_of_the_process_waits_for_the_deliveries",
    "A thread that computes has the interpreter": "test_who_commits_without_a_pause_lets_the_pump_work",
}
"""How a rule begins, and the test of it."""


def rules() -> list[str]:
    found = []
    for path in PAGES:
        _, _, page = path.read_text(encoding="utf-8").partition("\n## Rules\n")
        section, _, _ = page.partition("\n## ")
        found += [
            " ".join(rule.split()) for rule in re.findall(r"^- \*\*(.+?)(?:\*\*|$)", section, re.MULTILINE)
        ]
    return found


@pytest.mark.parametrize("rule", TESTS)
def test_the_test_of_a_rule_is_there(rule):
    assert [found for found in rules() if found.startswith(rule)], "no such rule in docs/design-*.md"
    definition = re.compile(rf"^ *(?:async )?def {TESTS[rule]}\(", re.MULTILINE)
    assert any(definition.search(path.read_text(encoding="utf-8")) for path in HERE.rglob("test_*.py"))


def test_each_rule_has_a_test():
    assert [rule for rule in rules() if not rule.startswith(tuple(TESTS))] == []
