"""The table of Kafka's error codes: against Kafka's own class, its rules, and that nothing makes it fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.codes.names import APIS, all_codes, api_name, code_of_name, names
from kafkasafe.codes.verdicts import (
    NO_CONTEXT,
    AnswerAction,
    ErrorAction,
    ErrorContext,
    classify_code,
    classify_produce,
)
from kafkasafe.testing import jars

RETRY, REFRESH, ASK = ErrorAction.RETRY, ErrorAction.RETRY_AFTER_REFRESH, ErrorAction.ASK_BROKER
RESET, FENCE, FATAL, SUCCESS = (
    ErrorAction.RESET_SEQUENCE,
    ErrorAction.FENCE,
    ErrorAction.FATAL,
    ErrorAction.SUCCESS,
)

# Where a flag of ours is deliberately not Kafka's.
DIFFERENT = {-1, 8, 41, 84, 129}


# --- Kafka's own class ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs():
    """Code → (name, exception class and its parents) and the names of all requests, as the newest jars say.

    Py4J, which comes with PySpark, calls the class from here: a Java runtime is enough, no compiler.
    """
    gateway = pytest.importorskip("py4j.java_gateway")
    import pyspark

    directory = jars.resolve()
    port, process = gateway.launch_gateway(
        classpath=jars.classpath(directory),
        jarpath=str(next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))),
        java_path=str(jars.find_java()),
        die_on_exit=True,
        return_proc=True,
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
    )
    try:
        jvm = gateway.JavaGateway(gateway_parameters=gateway.GatewayParameters(port=port))
        protocol = jvm.jvm.org.apache.kafka.common.protocol
        errors = {}
        for error in protocol.Errors.values():
            parents, thrown = [], error.exception()
            kind = None if thrown is None else thrown.getClass()
            while kind is not None:
                parents.append(kind.getSimpleName())
                kind = kind.getSuperclass()
            errors[error.code()] = (error.name(), parents)
        apis = [key.name() for key in protocol.ApiKeys.values()]
        jvm.shutdown()
    finally:
        process.stdin.close()
        process.wait(30)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return errors, apis


@pytest.mark.kafka
def test_codes_and_names_are_kafkas(theirs):
    errors, _ = theirs
    assert all_codes() == sorted(errors)
    assert {code: classify_code(code).name for code in errors} == {
        code: name for code, (name, _) in errors.items()
    }


@pytest.mark.kafka
def test_names_of_java_s_exceptions_are_known_with_and_without_their_package(theirs):
    errors, _ = theirs
    for code, (name, parents) in errors.items():
        for java in parents[:1]:
            assert code_of_name(java) == code, name
            assert code_of_name(f"org.apache.kafka.common.errors.{java}") == code, name


@pytest.mark.kafka
def test_flags_are_those_of_kafkas_exception_classes_or_say_why_not(theirs):
    errors, _ = theirs
    different = set()
    for code, (name, parents) in errors.items():
        verdict = classify_code(code)
        if verdict.retriable != ("RetriableException" in parents):
            different.add(code)
        if verdict.refresh_metadata != ("RefreshRetriableException" in parents):
            different.add(code)
        if verdict.refresh_metadata != ("InvalidMetadataException" in parents):
            assert verdict.note, f"{name}: refreshes, but not topic metadata"
        assert verdict.note or code not in different, name
    assert different == DIFFERENT


@pytest.mark.kafka
def test_every_request_of_kafka_has_a_name_here(theirs):
    _, apis = theirs
    assert [api_name(name) for name in apis] == list(APIS)


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", all_codes())
@pytest.mark.parametrize("api", [None, "produce", "fetch", "list_offsets"])
def test_every_row_says_one_thing_that_can_be_done(code, api):
    verdict = classify_code(code, api)
    assert (verdict.code, verdict.api) == (code, api)
    assert verdict.explanation[0].isupper()
    assert verdict.explanation.endswith(".")
    assert ". " not in verdict.explanation.replace(". kafkasafe", "")
    assert not (verdict.refresh_metadata and not verdict.retriable)


@pytest.mark.parametrize("code", [-2, 134, 4711, -32768, 32767, 10**30])
@pytest.mark.parametrize("api", [None, "produce"])
def test_a_code_of_the_future_is_retried_and_proves_nothing(code, api):
    verdict = classify_code(code, api)
    assert (verdict.name, verdict.action, verdict.data_at_risk) == (f"ERROR_{code}", REFRESH, False)
    assert verdict.note


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (22, FENCE),
        (25, FENCE),
        (47, FENCE),
        (90, FENCE),
        (46, SUCCESS),
        (0, SUCCESS),
        (45, ASK),
        (59, ASK),
        (1, ASK),
        (78, RETRY),
        (5, REFRESH),
        (6, REFRESH),
        (9, REFRESH),
        (2, RETRY),
        (75, RETRY),
        (29, FATAL),
    ],
)
def test_rows_that_others_rely_on(code, action):
    assert classify_code(code).action is action


@pytest.mark.parametrize("code", all_codes())
def test_the_journal_and_the_verdict_on_produce_agree(code):
    step, verdict = classify_produce(code), classify_code(code, "produce")
    if step.name.startswith("ERROR_"):
        return  # No broker answers it to Produce.
    match step.action:
        case AnswerAction.ACK:
            assert verdict.action is SUCCESS
        case AnswerAction.RETRY:
            assert verdict.action is (REFRESH if step.refresh_metadata else RETRY)
            assert step.absent or "same bytes" in verdict.explanation
        case AnswerAction.ASK_BROKER:
            # Never less careful than not sending it again.
            assert verdict.action in {ASK, FENCE, SUCCESS}
        case AnswerAction.REJECT_BATCH:
            assert verdict.action is ErrorAction.REJECT_RECORD
    assert verdict.note or verdict.action is classify_code(code).action


# --- request kinds ----------------------------------------------------------------------------------------------------


def test_an_offset_that_is_not_available_yet_is_asked_for_again():
    # KIP-207: the new code spares the metadata refresh, the old one cannot.
    for code, refresh in ((78, False), (5, True)):
        verdict = classify_code(code, "list_offsets")
        assert (verdict.retriable, verdict.refresh_metadata) == (True, refresh)
        assert "KIP-207" in verdict.explanation


@pytest.mark.parametrize("api", ["fetch", "list_offsets"])
@pytest.mark.parametrize("code", [9, -1])
def test_remote_storage_that_is_not_ready_is_waited_for(api, code):
    verdict = classify_code(code, api)
    assert verdict.retriable
    assert not verdict.data_at_risk
    assert "KIP-1007" in verdict.explanation
    assert "only this partition" in verdict.explanation


def test_a_tiered_partition_is_asked_again_without_looking_for_its_leader():
    verdict = classify_code(9, "fetch", ErrorContext(tiered=True))
    assert (verdict.action, bool(verdict.note)) == (RETRY, True)
    assert classify_code(9, "produce", ErrorContext(tiered=True)).action is REFRESH


@pytest.mark.parametrize(
    ("context", "action", "at_risk"),
    [
        (NO_CONTEXT, ASK, True),
        (ErrorContext(tiered=True), ASK, True),
        (ErrorContext(tiered=True, position=5), ASK, True),
        (ErrorContext(tiered=True, position=5, log_start_offset=5), RETRY, False),
        (ErrorContext(tiered=True, position=5, log_start_offset=0), RETRY, False),
        (ErrorContext(tiered=True, position=5, log_start_offset=6), FATAL, True),
        (ErrorContext(position=5, log_start_offset=6), FATAL, True),
        (ErrorContext(position=5, log_start_offset=5), ASK, True),
        (ErrorContext(tiered=True, position=5, log_start_offset=-1), ASK, True),
        (ErrorContext(tiered=True, position=-1, log_start_offset=0), ASK, True),
    ],
)
def test_a_position_out_of_range_is_never_reset_blindly(context, action, at_risk):
    verdict = classify_code(1, "fetch", context)
    assert (verdict.action, verdict.data_at_risk) == (action, at_risk)


def test_offsets_that_were_deleted_unread_are_named():
    verdict = classify_code(1, "fetch", ErrorContext(position=5, log_start_offset=9))
    assert "Offsets 5 to 8 were deleted unread" in verdict.explanation


def test_old_brokers_without_describe_producers_have_their_log_read():
    assert classify_code(35, "describe_producers").action is ASK
    assert classify_code(35).action is FATAL


# --- KAFKA-5793: unknown producers, sequences out of order ------------------------------------------------------------


@pytest.mark.parametrize(
    ("acked", "start", "action"),
    [
        (1000, 1001, RESET),
        (1000, 10**12, RESET),
        (0, 1, RESET),
        (1000, 1000, FATAL),
        (1000, 999, FATAL),
        (1000, 0, FATAL),
        (0, 0, FATAL),
        # With nothing acknowledged nothing that was can be lost: as the journal does, all is sent again.
        (None, 0, RESET),
        (None, 1, RESET),
        (None, 999, RESET),
        (-1, 0, RESET),
        (-1, 999, RESET),
        # Produce before v5 does not say where the log starts.
        (1000, -1, RETRY),
        (None, -1, RETRY),
        # Absurd: believed by nobody, harmless.
        (1000, -7, RETRY),
        (1000, 2**63, RETRY),
        (1000, 2**63 - 1, RESET),
        # The answer was not looked at.
        (1000, None, ASK),
        (None, None, ASK),
    ],
)
@pytest.mark.parametrize("resend", [False, True])
@pytest.mark.parametrize("api", [None, "produce"])
def test_an_unknown_producer_is_retention_only_beyond_what_was_acknowledged(
    acked, start, action, resend, api
):
    context = ErrorContext(last_acked_offset=acked, log_start_offset=start, resend=resend)
    verdict = classify_code(59, api, context)
    assert verdict.action is action
    # A loss is never swallowed; retention is never called one.
    assert verdict.data_at_risk == (action in {FATAL, ASK})
    if action is FATAL:
        assert verdict.explanation.startswith("Data loss")


@given(acked=st.none() | st.integers(-10, 2**64), start=st.none() | st.integers(-10, 2**64))
def test_a_new_sequence_needs_proof(acked, start):
    verdict = classify_code(59, "produce", ErrorContext(last_acked_offset=acked, log_start_offset=start))
    proven = start is not None and 0 <= start < 2**63 and (acked is None or acked < 0 or acked < start)
    assert (verdict.action is RESET) == proven


def test_a_sequence_out_of_order_on_a_first_send_is_a_gap_on_a_resend_mostly_nothing():
    first = classify_code(45, "produce", ErrorContext(resend=False))
    again = classify_code(45, "produce", ErrorContext(resend=True))
    assert (first.action, first.data_at_risk) == (ASK, True)
    assert (again.action, again.data_at_risk) == (ASK, False)
    assert "committed already" in again.explanation


@pytest.mark.parametrize("resend", [False, True])
def test_what_stays_out_of_order_after_asking_is_data_loss(resend):
    absent = classify_code(45, "produce", ErrorContext(resend=resend, in_log=False))
    assert (absent.action, absent.data_at_risk) == (FATAL, True)
    assert classify_code(45, "produce", ErrorContext(resend=resend, in_log=True)).action is SUCCESS


def test_a_duplicate_that_is_not_in_the_log_is_not_taken_for_a_success():
    assert classify_code(46, "produce").action is SUCCESS
    verdict = classify_code(46, "produce", ErrorContext(in_log=False))
    assert (verdict.action, verdict.data_at_risk) == (FATAL, True)


@pytest.mark.parametrize("code", [47, 90])
def test_a_fenced_producer_stays_fenced_even_if_its_last_batch_arrived(code):
    assert classify_code(code, "produce", ErrorContext(in_log=True)).action is FENCE


@pytest.mark.parametrize("code", [-1, 7, 13, 20, 56, 59])
def test_a_batch_that_is_in_the_log_needs_nothing(code):
    assert classify_code(code, "produce", ErrorContext(in_log=True)).action is SUCCESS


# --- totality ---------------------------------------------------------------------------------------------------------

_OFFSETS = st.none() | st.integers()


@given(
    code=st.integers(-5, 140) | st.integers(),
    api=st.none() | st.sampled_from(APIS),
    context=st.builds(
        ErrorContext,
        last_acked_offset=_OFFSETS,
        log_start_offset=_OFFSETS,
        resend=st.none() | st.booleans(),
        tiered=st.none() | st.booleans(),
        position=_OFFSETS,
        in_log=st.none() | st.booleans(),
    ),
)
def test_nothing_makes_it_fail_and_flags_follow_from_actions(code, api, context):
    verdict = classify_code(code, api, context)
    assert verdict == classify_code(code, api, context)
    assert verdict.retriable == (verdict.action in {RETRY, REFRESH, RESET})
    assert verdict.explanation.endswith(".")
    assert verdict.as_dict()["action"] == verdict.action.value
    if verdict.action is SUCCESS:
        assert not verdict.data_at_risk


def test_names_are_found_however_they_are_written():
    assert names()[:2] == ["UNKNOWN_SERVER_ERROR", "NONE"]
    for code, name in zip(all_codes(), names(), strict=True):
        assert code_of_name(name) == code_of_name(name.lower().replace("_", "-")) == code
    assert code_of_name("NotLeaderForPartition") == 6
    assert code_of_name("nothing like it") is None
    assert api_name("ListOffsets") == api_name("LIST_OFFSETS") == api_name("list-offsets") == "list_offsets"
    assert api_name("lists") is None
