"""Which tests are fast: `make test` runs those, `make test-all` and continuous integration run them first, then the rest.

Some of the fast tests are also quick: `make quick` runs them. A quick test opens no connection and needs no broker, not even
one in memory. `QUICK` lists them, and `tests/test_tiers.py` requires that it lists each test module that imports only the
pure core. Run as a program, this module prints the paths of the quick modules, so that pytest imports no others.

By rule a test is fast if it is of this process alone. One that starts brokers, kills processes or starts Spark (it has
the marker `kafka`, `crash` or `spark`) is `full`, unless it is named in `WORTH_IT`: there each promise of the README is
seen once on real brokers. `FULL_VARIANTS` names variants of slow tests that are full.

A fast test that is not `real` waits for nothing and talks to nothing outside its process (`outside.py`): `time.sleep`
on its thread raises, but for a moment of the product's between two looks at a condition, and so does a connection to
anything that does not listen in this process. A `FakeCluster`'s sockets
for clients (`fake_kafka`) does: its sockets are of 127.0.0.1, but nobody else is at the other end. What has a fixture or
a marker of real brokers is `real` by rule; what must sleep or knock at a closed port has the marker `real`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

REAL = {"kafka", "crash", "spark"}

OF_FIXTURES = {
    "kafka": "kafka",
    "kafka_cluster": "kafka",
    "broker": "kafka",
    "spark": "spark",
    "zygote": "crash",
    "free_port": "real",
}
"""Markers that a test has because of a fixture it uses."""

ALL: tuple[str, ...] = ()

WORTH_IT: dict[str, tuple[str, ...]] = {
    "consumer/test_drop_in.py": ALL,
    "consumer/test_metrics.py": ALL,
    "consumer/test_offsets_cli.py": ALL,
    "contract/test_protocol.py": (
        "test_batches_and_their_repetition",
        "test_headers_and_records",
        "test_metadata_of_a_topic",
        "test_what_a_leader_remembers",
        "test_where_an_epoch_ends",
    ),
    "codes/test_classify.py": ALL,
    "producer/test_broker_faults.py": (
        "test_answers_lost_to_a_living_producer",
        "test_leaders_fail_over_while_records_flow",
    ),
    "producer/test_callbacks.py": ALL,
    "producer/test_damage.py": ALL,
    "producer/test_default_spool.py": ALL,
    "producer/test_drop_in.py": ALL,
    "producer/test_first_contact.py": ALL,
    "producer/test_kill.py": ("test_nothing_is_lost_by_killing_the_process_a_few_times",),
    "producer/test_loss.py": ("test_an_unclean_election_loses_what_the_leader_alone_had",),
    "producer/test_never.py": ("test_no_file_is_written_and_no_home_is_needed",),
    "spark/test_memory.py": ALL,
    "spark/test_outcomes.py": ALL,
    "spark/test_sessions.py": ALL,
    "spark/test_sink.py": (
        "test_a_micro_batch_is_written_once_however_it_comes_again",
        "test_a_query_that_repeats_its_last_batch_does_not_repeat_its_rows",
    ),
    "spark/test_source.py": ("test_a_batch_query_sees_what_sparks_own_source_would",),
    "spark/test_writers.py": ("test_a_stream_writes_each_batch_once_however_it_is_repeated",),
    "test_appender.py": ALL,
    "test_dump_log.py": ALL,
    "transport/test_fetch_records.py": ALL,
}
"""Modules of real tests, and the functions of them that are fast; none named: all."""

NOT_WORTH_IT = ("dashboard/",)
"""What is fast by the rule and nevertheless is not."""

FULL_VARIANTS: dict[str, tuple[str, ...]] = {
    "aio/test_send.py::test_another_thread_seals_in_the_middle_of_send": ("plenty",),
    "cli/test_cli_streams.py::test_json_is_json_on_a_stream_that_cannot_show_all_characters": ("latin1",),
    "consumer/test_arrow_views.py::test_views_hold_what_copies_hold": ("gzip", "lz4", "snappy"),
    "consumer/test_goes_back.py::"
    "test_a_member_that_has_missed_a_generation_does_not_repeat_what_another_has_committed": (
        "False-cooperative",
        "True-range",
    ),
    "consumer/test_other_lane.py::test_a_batch_waits_for_the_outcome_of_another_producers_batch": ("assign",),
    "consumer/test_read_again.py::test_what_a_dropped_batch_had_is_read_again_and_comes_once": (
        "SafeConsumer-False",
        "KafkaConsumer-True",
    ),
    "producer/test_atomic.py::test_a_topic_is_not_refused_for_what_stands_beside_it_in_a_batch": ("3",),
    "producer/test_broker_faults.py::test_answers_lost_to_a_living_producer": ("old", "restart"),
    "producer/test_health.py::test_a_group_or_a_transactional_id_that_the_cluster_blocks_is_a_warning": (
        "denied0",
    ),
    "producer/test_processes.py::test_what_the_workers_of_a_pool_accepted_last_is_not_lost": ("forkserver",),
    "producer/test_refused.py::test_one_stray_refusal_after_an_outage_throws_nothing_away": ("Metadata",),
    "producer/test_refused.py::test_records_wait_for_a_right_that_somebody_mends": (
        "accept-the metadata",
        "raise-the leader",
    ),
    "producer/test_refused.py::test_records_wait_for_a_topic_that_somebody_creates": ("deleted",),
    "producer/test_transaction_timeout.py::test_after_a_takeover_it_is_not": ("2.8.2",),
    "producer/test_transaction_timeout.py::test_it_is_prepared_again_and_seen_once": ("2.8.2",),
    "spark/test_asking_at_once.py::test_elections_and_retention_between_plans": ("True",),
    "spark/test_partitions_gone.py::test_a_topic_that_is_deleted_after_the_metadata_were_read_is_a_loss": (
        "True-true",
        "False-false",
    ),
    "spark/test_sink.py::test_a_query_that_repeats_its_last_batch_does_not_repeat_its_rows": ("True",),
    "spool/test_crash.py::test_every_crash_recovers_to_what_was_promised": ("0",),
    "transport/test_transport.py::"
    "test_a_network_thread_that_crashes_while_no_other_can_begin_is_replaced_as_soon_as_one_can": (
        "threads",
    ),
    "transport/test_transport.py::test_servers_that_are_no_brokers_are_not_hammered": ("answer_garbage",),
}
"""Variants of fast tests that take seconds and are full, because a variant like them is fast: tests, and what the ids of
the variants contain.
"""

QUICK: dict[str, tuple[str, ...]] = {
    "consumer/test_choice_of_follower.py": ALL,
    "consumer/test_iteration.py": ALL,
    "consumer/test_position_table.py": ALL,
    "consumer/test_record_layouts.py": ALL,
    "consumer/test_records.py": ALL,
    "cluster/": ALL,
    "codes/": ALL,
    "delivery/": ALL,
    "health/": ALL,
    "history/": ALL,
    "journal/": ALL,
    "limits/": ALL,
    "marks/": ALL,
    "record/": ALL,
    "units/": ALL,
    "engine/test_golden.py": ALL,
    "fake/test_groups.py": ALL,
    "spark/test_collected.py": ALL,
    "spark/test_txn.py": ALL,
    "spool/test_examine.py": ALL,
    "spool/test_extent.py": ALL,
    "tapes/test_tapes.py": ("test_a_whole_tape_is_decided_as_before",),
    "test_backoff.py": ALL,
    "test_classification.py": ALL,
    "test_clock.py": ALL,
    "test_docs.py": ALL,
    "test_kafkapython.py": ALL,
    "config/test_options_read.py": ALL,
    "config/test_options_table.py": ALL,
    "config/test_option_names.py": ALL,
    "config/test_options_typed.py": ALL,
    "test_locks.py": ALL,
    "test_ownership.py": ALL,
    "test_pages.py": ALL,
    "test_performance_page.py": ALL,
    "test_public_api.py": ALL,
    "test_rooms.py": ("test_no_file_is_too_large_to_know_ones_way_in",),
    "test_rules.py": ALL,
    "test_site.py": ALL,
    "test_tiers.py": ("test_each_pure_module_is_quick",),
    "transport/test_offsets_wire.py": ALL,
    "transport/test_order_of_batches.py": ALL,
}
"""Modules of quick tests, or whole folders, and the functions of them that are quick; none named: all."""

NOT_QUICK: dict[str, tuple[str, ...]] = {
    "codes/test_classify.py": ALL,
    "producer/test_root.py": ALL,
    "test_pages.py": ("test_the_names_of_metrics_are_those_that_prometheus_sees",),
}
"""Exceptions from `QUICK`: tests that use a connection, or take seconds each."""


def is_fast(module: str, function: str, marks: set[str], variant: str = "") -> bool:
    """Whether a test is of the fast tier.

    Args:
        module: Its file, from `tests/`.
        function: Its name, without parameters.
        marks: Names of its markers.
        variant: The id of its parameters.
    """
    if "full" in marks or module.startswith(NOT_WORTH_IT):
        return False
    if any(part in variant for part in FULL_VARIANTS.get(f"{module}::{function}", ())):
        return False
    named = WORTH_IT.get(module)
    return not marks & REAL or (named is not None and (not named or function in named))


def in_tiers(count: int, *, fast: int) -> list[Any]:
    """Return parameters of a test: numbers from 0. Only the first `fast` of them are of the fast tier."""
    return [*range(fast), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(fast, count))]


def is_quick(module: str, function: str, marks: set[str]) -> bool:
    """Whether a test is quick; the arguments are those of `is_fast`."""
    if is_real(marks) or not is_fast(module, function, marks):
        return False
    return _names(QUICK, module, function) and not _names(NOT_QUICK, module, function)


def _names(table: dict[str, tuple[str, ...]], module: str, function: str) -> bool:
    functions = table.get(module, table.get(f"{module.rpartition('/')[0]}/"))
    return functions is not None and (not functions or function in functions)


def quick_modules() -> list[str]:
    """The modules that have quick tests, from `tests/`."""
    modules = []
    for name in QUICK:
        modules += sorted(HERE.glob(f"{name}test_*.py")) if name.endswith("/") else [HERE / name]
    names = [path.relative_to(HERE).as_posix() for path in modules]
    return [name for name in names if NOT_QUICK.get(name) != ALL]


def is_real(marks: set[str]) -> bool:
    """Whether a test may sleep and connect to other processes."""
    return bool(marks & (REAL | {"real", "full"}))


_OF_ONE_THREAD = tuple(name for name in QUICK if name.endswith("/"))


def group(module: str) -> str:
    """Of tests that run on one worker, because they share what takes seconds to start; none: on any."""
    if module.startswith("spark/"):
        return "spark"
    alone = (
        module.startswith((*_OF_ONE_THREAD, "simulation/", "spool/", "tapes/"))
        and module != "codes/test_classify.py"
    )
    return "" if alone else module


if __name__ == "__main__":
    print(*(f"tests/{module}" for module in quick_modules()))
