"""Guesses which option was intended, from names of other clients and from similar names. Parses sizes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Final

# Each line contains kafkasafe's option, a note (may be missing) and the option's other names: `option: note = names`.
# A hint contains the option and the note.
_ALIASES: Final = """
bootstrap_servers = bootstrap_server metadata_broker_list broker_list brokers servers hosts
spool_dir = spool_path spool_directory spool_folder spool_location data_dir queue_dir state_dir
spool_max_bytes = spool_size spool_bytes spool_max_size max_spool_size max_spool_bytes spool_limit
spool_max_bytes = queue_size max_queue_size
spool_max_bytes: it counts bytes = queue_buffering_max_kbytes queue_buffering_max_messages
spool_segment_bytes = segment_bytes segment_size spool_segment_size
spool: 'always', 'on_error' or 'never' = spool_mode spool_policy in_memory memory_only
run_ahead_bytes = buffer_size run_ahead max_run_ahead
spool_sync = fsync spool_fsync sync
linger_ms = linger queue_buffering_max_ms batch_linger_ms
delivery_timeout_ms = message_timeout_ms delivery_timeout
batch_size: it counts bytes = batch_num_messages max_batch_size batch_bytes batch_size_bytes
max_request_size = message_max_bytes max_message_bytes max_message_size
compression_type = compression compression_codec
max_in_flight_requests_per_connection = max_in_flight max_in_flight_requests
acks = request_required_acks required_acks
request_timeout_ms = request_timeout socket_timeout_ms
metadata_max_age_ms = topic_metadata_refresh_interval_ms metadata_refresh_interval_ms
partitioner: an object with a method partition() = partitioner_class
enable_idempotence: it is always on = idempotence idempotent
delivery = exactly_once eos processing_guarantee delivery_guarantee delivery_semantics transactional
retain_acked_ms: in milliseconds = retain_acked_s
offsets_hold_timeout_ms: in milliseconds = offsets_hold_timeout_s
retain_acked_bytes: also by time = retention retain retention_bytes retention_ms retention_time retain_acked
rejected_max_bytes = rejected_size max_rejected_bytes
on_rejected: {hook} = dead_letter dead_letter_callback dead_letter_handler
on_rejected: {hook} = dlq dlq_topic dlq_name dead_letter_topic dead_letter_queue
on_rejected: {hook} = deadletter_topic dead_letters on_dead_letter errors_deadletterqueue_topic_name
on_event = error_cb event_cb error_callback on_error event_callback listener
on_data_loss = on_acked_loss
data_loss_check_ms = acked_loss_check_ms
restore_recreated_topics = heal_recreated_topics
blocked_timeout_ms = refused_timeout_ms
on_blocked_topic = on_refused_topic
prometheus = metrics stats_cb statistics_interval_ms enable_metrics
transactional_id = transaction_id
security_protocol = protocol
sasl_mechanism = sasl_mechanisms
sasl_plain_username = sasl_username username
sasl_plain_password = sasl_password password
sasl_plain_username: and sasl_plain_password = sasl_jaas_config
sasl_oauth_token_provider = oauth_cb sasl_login_callback_handler_class
ssl_cafile: a PEM file = ssl_ca_location ssl_truststore_location ssl_ca_pem cafile ca_cert
ssl_certfile: a PEM file = ssl_certificate_location ssl_keystore_location certfile
ssl_keyfile: a PEM file = ssl_key_location keyfile
ssl_password = ssl_key_password ssl_keystore_password
ssl_crlfile = ssl_crl_location
ssl_ciphers = ssl_cipher_suites
ssl_check_hostname = ssl_endpoint_identification_algorithm enable_ssl_certificate_verification
client_rack = rack_id
group_id = group consumer_group group_name
fetch_max_wait_ms = fetch_wait_max_ms fetch_max_wait
max_partition_fetch_bytes = fetch_message_max_bytes
auto_offset_reset = offset_reset
enable_auto_commit = auto_commit auto_commit_enable enable_autocommit
partition_assignment_strategy = assignment_strategy assignor
offsets_path = offsets_file offset_file offsets_dir
lineage_path = lineage_file checkpoint checkpoint_path checkpoint_dir
on_divergence = on_truncation divergence
"""

_HOOK: Final = "a function that gets each rejected record, and can produce it to a dead-letter topic"

# Names for which kafkasafe has no option, and what to use instead.
_ELSEWHERE: Final = {
    "durable": "`future.durable()` and `producer.durable()` wait until records are on disk",
    "flush_spool": "`producer.durable()` waits until all accepted records are on disk",
    "resume_parked": "call `producer.resolve_undecidable(...)`",
    "durability": "`future.durable()` and `producer.durable()` wait until records are on disk; see also spool_sync",
    "on_delivery": "`send(...).add_callback(...)` and `add_errback` call a function of yours",
    "dr_cb": "`send(...).add_callback(...)` and `add_errback` call a function of yours",
    "dr_msg_cb": "`send(...).add_callback(...)` and `add_errback` call a function of yours",
    "delivery_callback": "`send(...).add_callback(...)` and `add_errback` call a function of yours",
    "callback": "`send(...).add_callback(...)` and `add_errback` call a function of yours",
    "message_send_max_retries": "leave it out: a record that waits is never given up",
    "group_protocol": "leave it out: groups use the classic protocol, not KIP-848's",
    "interceptor_classes": "wrap `send`, or the records that `poll` returns",
    "debug": "set the level of the logger 'kafkasafe' (docs/logging.md)",
    "log_level": "set the level of the logger 'kafkasafe' (docs/logging.md)",
    "enable_partition_eof": "compare `position` with `end_offsets`",
    "enable_auto_offset_store": "leave it out: what `poll` returned counts as handed out",
}


def _table() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for line in _ALIASES.strip().splitlines():
        ours, _, theirs = line.rpartition(" = ")
        name, _, note = ours.partition(": ")
        for alias in theirs.split():
            found[alias] = name, note.replace("{hook}", _HOOK)
    return found


_MEANT: Final = _table()
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)
_UNITS: Final = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}


def snake(name: str) -> str:
    """Convert a name to kafkasafe's spelling: "linger.ms", "linger-ms" and "lingerMs" become "linger_ms"."""
    humps = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return humps.replace(".", "_").replace("-", "_").lower()


def hint_for(name: str, known: Collection[str], *, others: Collection[str], other: str, page: str) -> str:
    """Return a hint for the name of an unknown option, such as the option that was probably meant.

    Args:
        name: The unknown name, as it was given.
        known: The client's options.
        others: The options of the other client.
        other: Name of the other client.
        page: The page that lists the options.
    """
    plain = snake(name)
    meant, note = _MEANT.get(plain, (plain, ""))
    more = f" ({note})" if note else ""
    if meant in known:
        return f"did you mean {meant!r}?{more} All options: {page}"
    if plain in _ELSEWHERE:
        return f"there is no such option; {_ELSEWHERE[plain]}. All options: {page}"
    if meant in others:
        said = f"{meant!r} is an option of {other}"
        return f"{said}{more}. All options: {page}"
    near = difflib.get_close_matches(plain, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? All options: {page}" if near else f"see {page} for the list of options"


def size_of(text: str) -> int:
    """Convert a size such as "64MiB", "1 GiB", "500kB" (kB: 1000 bytes) or "4096" to bytes.

    Raises:
        ValueError: The text is not a size.
    """
    found = _SIZE.fullmatch(text)
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is not a size; write 64MiB, 1GiB, or a number of bytes")
    return int(float(found[1]) * _UNITS[(found[2] + found[3]).lower()])
