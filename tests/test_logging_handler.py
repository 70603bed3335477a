"""KafkaHandler: nobody who logs waits long, none of its own records comes back, and what was logged arrives."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.config
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ctrl_c import CtrlC

from kafkasafe import SafeProducer
from kafkasafe.errors import ConfigError, LaneBusyError, ProducerClosedError, SpoolFormatError
from kafkasafe.logging_handler import KafkaHandler

FLUSHING = {"threading", "kafkasafe.logging_handler", "kafkasafe.process.wake_flag"}
PROGRAM = Path(__file__).parent / "logged_program.py"
LONG_S = 90.0


def completed(program, options):
    """Runs a program in a process of its own, until it has succeeded."""
    servers = ",".join(options["bootstrap_servers"])
    command = [sys.executable, "-c", program, servers, str(options["spool_dir"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def options(fake_kafka, tmp_path):
    fake_kafka.create_topic("logs")
    return {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool_dir": tmp_path / "spool"}


@pytest.fixture
def logger():
    """The root at DEBUG: what kafkasafe and kafka-python log comes back."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.setLevel(logging.DEBUG)
    yield logging.getLogger("app")
    root.setLevel(level)
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
        handler.close()


@pytest.fixture
def own_logger():
    """A logger apart from the root: its handler does not see what other threads of this process log."""
    logger = logging.getLogger("app.own")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


@pytest.fixture
def stderr(monkeypatch):
    """What `handleError` prints; it is no exception of the program's."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    return text


def attach(handler, logger=None):
    (logger or logging.getLogger()).addHandler(handler)
    return handler


def lines(cluster):
    return [value.decode() for value in cluster.values("logs")]


def test_at_debug_on_the_root_it_sends_what_is_logged_and_nothing_of_its_own(
    options, logger, fake_kafka, tmp_path
):
    handler = attach(KafkaHandler("logs", key="%(name)s", **options))
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def many(number):
        for i in range(200):
            logger.debug("%d-%d", number, i)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    # Another producer's records are sent as anybody's.
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "b", client_id="shop"
    ) as other:
        other.send("logs", b"of another producer")
    logging.getLogger("kafkasafe.producer").warning("of the shop", extra={"client_id": "shop"})
    logging.getLogger("kafkasafe.producer").warning("its own", extra={"client_id": "kafkasafe-log"})
    handler.flush()
    # What others log after its end is another matter.
    dropped = handler.dropped
    handler.close()
    found = lines(fake_kafka)
    app = [line for line in found if line.startswith("app ")]
    for number in range(4):
        assert [line for line in app if line.startswith(f"app {number}-")] == [
            f"app {number}-{i}" for i in range(200)
        ]
    assert "kafkasafe.producer of the shop" in found
    assert "kafkasafe.producer its own" not in found
    # Its own producer wrote a few batches: each record of those would have made more.
    assert len(found) < 1200
    assert {record.keys[0] for record in fake_kafka.records("logs") if record.keys} >= {b"app"}
    assert dropped == 0


def test_it_knows_its_own_records_though_records_do_not_name_their_threads(
    options, logger, fake_kafka, monkeypatch
):
    """It sent what kafka-python logged about each of its requests, so each request caused the next one."""
    monkeypatch.setattr(logging, "logThreads", False)
    handler = attach(KafkaHandler("logs", **options))
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    logger.info("one")
    handler.flush()
    handler.close()
    assert lines(fake_kafka) == ["app one"]


@pytest.mark.real
def test_who_logs_waits_once_and_not_long_when_nothing_more_can_be_kept(
    options, own_logger, stderr, fake_kafka
):
    handler = attach(
        KafkaHandler("logs", queue_records=5, block_ms=200, spool_max_bytes=16 << 20, **options), own_logger
    )
    own_logger.info("before")
    handler.flush()
    fake_kafka.kill_all()
    large = "x" * 100_000
    logged = 1
    while not handler.dropped:
        own_logger.info(large)
        logged += 1
        assert logged < 2000, "the spool never was full"
    began = time.monotonic()
    dropped = handler.dropped
    for _ in range(500):
        own_logger.info(large)
        logged += 1
    # 500 times 0.2 s would be 100.
    assert time.monotonic() - began < 50
    assert handler.dropped > dropped
    assert stderr.getvalue().count("--- Logging error ---") <= 5
    fake_kafka.start_all()
    end = time.monotonic() + LONG_S
    while handler._queue.qsize() and time.monotonic() < end:
        time.sleep(0.05)
    own_logger.info("after")
    handler.close()
    found = lines(fake_kafka)
    assert found[0] == "before"
    assert "after" in found
    said = [line for line in found if line.endswith("log records were dropped")]
    assert sum(int(line.split()[0]) for line in said) == handler.dropped
    assert len(found) - len(said) == logged + 1 - handler.dropped


CONFIGURES = """
import logging.config, sys
handler = {"class": "kafkasafe.logging_handler.KafkaHandler", "topic": "logs",
           "bootstrap_servers": sys.argv[1], "spool_dir": sys.argv[2]}
for number in range(3):
    logging.config.dictConfig({"version": 1, "handlers": {"kafka": handler},
                               "root": {"level": "INFO", "handlers": ["kafka"]}})
    logging.info("configured %d", number)
"""


@pytest.mark.real
def test_a_program_that_configures_its_logging_again(options, fake_kafka):
    """`dictConfig` holds logging's lock while it closes the former handler, whose producer logs: it never returned."""
    servers, spool = fake_kafka.bootstrap_servers[0], str(options["spool_dir"])
    subprocess.run([sys.executable, "-c", CONFIGURES, servers, spool], check=True, timeout=LONG_S)
    with KafkaHandler("logs", **options)._opened() as producer:
        producer.flush(LONG_S)
    assert sorted(lines(fake_kafka)) == [f"configured {number}" for number in range(3)]


def test_what_cannot_be_sent_costs_nothing_else(options, stderr, fake_kafka):
    class Chatty:
        def __str__(self) -> str:
            logger.info("while formatting")
            return "chatty"

    # By itself: pytest's own handler would raise what cannot be formatted.
    logger = logging.getLogger("alone")
    logger.propagate = False
    handler = KafkaHandler(lambda record: getattr(record, "topic", "logs"), **options)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.info("%d", "no number")
    logger.info("nowhere", extra={"topic": "not a topic"})
    logger.info("no string", extra={"topic": None})
    logger.info("%s", Chatty())
    logger.info("\udc80 is no text")
    handler.close()
    logger.info("too late")
    logger.handlers = []
    assert lines(fake_kafka)[:3] == ["while formatting", "3 log records were dropped", "chatty"]
    assert "\\udc80 is no text" in lines(fake_kafka)
    assert handler.dropped == 4
    with pytest.raises(ConfigError):
        KafkaHandler("logs", bootstrap_servers="localhost:1", no_such_option=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_full": "maybe"}, "on_full"),
        ({"topic": None}, "topic must be a string or a function"),
        ({"topic": ""}, "topic: "),
        ({"topic": "not a topic"}, "topic: "),
        ({"key": 5}, "key must be a string or a function"),
        ({"queue_records": "many"}, "queue_records must be a number of at least 1"),
        ({"block_ms": float("nan")}, "block_ms must be a number of at least 0"),
        ({"close_ms": None}, "close_ms must be a number of at least 0"),
    ],
)
def test_what_cannot_work_is_said_at_once(given, message):
    """Not on stderr, at each record that is logged."""
    with pytest.raises(ConfigError, match=message):
        KafkaHandler(**{"topic": "logs", "bootstrap_servers": "localhost:1", **given})


@pytest.mark.real
def test_who_waits_for_room_has_it_before_those_who_log_just_then(options, own_logger, stderr, monkeypatch):
    """Each place that became free went to a thread that logged at that moment; who waited dropped its record."""
    handler = attach(KafkaHandler("logs", queue_records=1, block_ms=LONG_S * 1000, **options), own_logger)
    let_go = threading.Semaphore(0)
    sent = []

    def accept(item):
        let_go.acquire(timeout=LONG_S)
        sent.append(item[3].getMessage())

    monkeypatch.setattr(handler, "_accept", accept)
    own_logger.info("is being sent")
    while handler._queue.qsize():
        time.sleep(0)
    own_logger.info("is in the queue")
    first = threading.Thread(target=own_logger.info, args=["first"])
    first.start()
    while not getattr(handler, "_line", [True]):
        time.sleep(0)
    time.sleep(0.05)  # it waits

    def log_when_there_is_room():
        while handler._queue.qsize():
            pass
        own_logger.info("second")

    second = threading.Thread(target=log_when_there_is_room)
    second.start()
    let_go.release(100)
    first.join(LONG_S)
    second.join(LONG_S)
    handler.close()
    assert sent == ["is being sent", "is in the queue", "first", "second"]
    assert handler.dropped == 0


def test_full_and_told_to_drop_it_does_not_wait(options, own_logger, stderr, fake_kafka):
    handler = attach(
        KafkaHandler("logs", on_full="drop", spool_max_bytes=16 << 20, max_block_ms=0, **options), own_logger
    )
    fake_kafka.kill_all()
    for _ in range(400):
        own_logger.info("x" * 100_000)
    handler.flush()
    assert handler.dropped > 0
    fake_kafka.start_all()
    handler.close()
    found = [line for line in lines(fake_kafka) if line.startswith("x")]
    assert len(found) == 400 - handler.dropped


def test_the_report_of_a_full_queue_does_not_blame_the_exception_that_the_program_logs(
    options, own_logger, capsys, monkeypatch
):
    handler = attach(KafkaHandler("logs", queue_records=1, block_ms=0, **options), own_logger)
    monkeypatch.setattr(handler, "_start", lambda: None)
    for _ in range(2):
        try:
            int("of the program")
        except ValueError:
            own_logger.exception("failed")
    said = capsys.readouterr().err
    assert "The queue is full: 1 records wait" in said
    assert "of the program" not in said
    assert handler.dropped == 1


def test_a_thread_that_cannot_be_started_yet_is_started_later(options, own_logger, fake_kafka, monkeypatch):
    """A process at its limit of threads: the handler never sent anything before it was closed."""
    start = threading.Thread.start
    failures = iter([True, True])

    def limited(thread):
        if thread.name == "kafkasafe-log-handler" and next(failures, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    handler = attach(KafkaHandler("logs", **options), own_logger)
    own_logger.info("one")
    own_logger.info("two")
    handler.flush()
    assert handler._thread is not None
    assert handler._queue.empty()
    handler.close()
    assert lines(fake_kafka) == ["one", "two"]
    assert handler.dropped == 0


def test_a_ctrl_c_in_flush_does_not_stop_the_handlers_thread(options, own_logger):
    """It left the lock of an event taken. The handler's thread waited for this lock for ever, and so did `close`."""
    handler = KafkaHandler("logs", close_ms=5_000, **options)
    own_logger.addHandler(handler)
    own_logger.info("first")
    for step in range(0, 300, 2):
        own_logger.info("before %d", step)
        with contextlib.suppress(KeyboardInterrupt, RuntimeError), CtrlC(step, FLUSHING) as at:
            handler.flush()
        began = time.monotonic()
        own_logger.info("after %d", step)
        handler.flush()
        assert time.monotonic() - began < 4, at.place
        if not at.pressed:
            break
    assert step > 5
    own_logger.removeHandler(handler)
    handler.close()


@pytest.mark.parametrize("began", [False, True])
def test_a_ctrl_c_while_the_thread_starts_does_not_leave_the_records_in_memory(
    options, own_logger, fake_kafka, monkeypatch, began
):
    handler = attach(KafkaHandler("logs", **options), own_logger)
    start, threads = threading.Thread.start, []

    def interrupted(thread):
        if thread.name != "kafkasafe-log-handler":
            start(thread)
            return
        threads.append(thread)
        if began or len(threads) > 1:
            start(thread)
        if len(threads) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        own_logger.info("first")
    own_logger.info("second")
    handler.flush()
    producer = handler._producer
    assert producer is not None
    producer.flush(LONG_S)
    assert lines(fake_kafka) == ["first", "second"]
    handler.close()
    for thread in threads:
        if thread.is_alive():
            thread.join(LONG_S)  # a thread that is not the only one ends by itself
    assert not any(thread.is_alive() for thread in threads)


def test_records_for_a_topic_that_cannot_exist_are_counted_in_the_next_one(
    options, own_logger, capsys, fake_kafka
):
    """The count was sent to the same topic, and so it was lost with the record."""
    handler = attach(KafkaHandler("%(topic)s", **options), own_logger)
    for topic in ("not a topic", "nor this", "logs"):
        own_logger.info("of %s", topic, extra={"topic": topic})
    handler.close()
    assert lines(fake_kafka) == ["of logs", "2 log records were dropped"]
    assert handler.dropped == 2
    assert capsys.readouterr().err.count("--- Logging error ---") == 1


@pytest.mark.parametrize(
    "error", [SpoolFormatError, ProducerClosedError, LaneBusyError, OSError, RuntimeError]
)
def test_a_record_is_sent_again_after_an_error_that_may_pass(
    options, own_logger, fake_kafka, monkeypatch, error
):
    handler = attach(KafkaHandler("logs", **options), own_logger)
    opened, failures = handler._opened, iter([error("not now")])

    def fails_once():
        for failure in failures:
            raise failure
        return opened()

    monkeypatch.setattr(handler, "_opened", fails_once)
    own_logger.info("kept")
    handler.flush()
    handler.close()
    assert handler.dropped == 0
    assert "kept" in lines(fake_kafka)


@pytest.mark.parametrize("created", [float("inf"), float("nan"), 1e300, -1.0])
def test_a_record_whose_time_cannot_be_sent_holds_up_no_other(
    options, own_logger, stderr, fake_kafka, created
):
    """The handler tried to send a record without end, if the error was none that it expected."""
    handler = attach(KafkaHandler("logs", **options), own_logger)
    record = own_logger.makeRecord("app.own", logging.INFO, "", 0, "timeless", (), None)
    record.created = created
    own_logger.handle(record)
    own_logger.info("after")
    handler.flush()
    assert handler.dropped == 1
    handler.close()
    assert "after" in lines(fake_kafka)


def test_a_record_that_was_logged_while_the_handler_was_closed_is_counted(
    options, own_logger, stderr, fake_kafka, monkeypatch
):
    """It stayed in the queue, and was neither sent nor counted."""
    handler = attach(KafkaHandler("logs", **options), own_logger)
    own_logger.info("one")
    handler.flush()
    has_room = handler._has_room

    def closed_meanwhile():
        found = has_room()
        handler.close()
        return found

    monkeypatch.setattr(handler, "_has_room", closed_meanwhile)
    own_logger.info("late")
    assert lines(fake_kafka) == ["one"]
    assert handler.dropped == 1


def run(options, how):
    arguments = [",".join(options["bootstrap_servers"]), str(options["spool_dir"]), how]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.real
def test_up_to_the_last_words_of_the_interpreter_and_in_forked_children(options, fake_kafka):
    with run(options, "exit") as program:
        _, errors = program.communicate(timeout=LONG_S)
    assert "Traceback" not in errors, errors
    found = [line for line in lines(fake_kafka) if line.startswith("app ")]
    own = [line for line in found if "child" not in line]
    assert own == [*(f"app line {number}" for number in range(100)), "app parent goes on", "app last words"]
    assert sorted(set(found) - set(own)) == [f"app child {number}" for number in range(3)]


@pytest.mark.crash
def test_what_flush_confirmed_survives_kill_9(options, fake_kafka):
    fake_kafka.refuse()
    with run(options, "kill") as program:
        assert program.stdout.readline() == "READY\n"
        program.kill()
    fake_kafka.restore()
    with SafeProducer(**options) as producer:
        producer.flush(LONG_S)
    assert [line for line in lines(fake_kafka) if line.startswith("app ")] == [
        f"app line {number}" for number in range(100)
    ]


def test_a_child_that_is_forked_while_a_producer_is_opened_does_not_wait_for_its_locks(options):
    """The handler's thread holds Python's lock of the temporary directory for as long as it looks for one."""
    program = """
import logging, multiprocessing, sys, tempfile, threading, time
from kafkasafe.logging_handler import KafkaHandler

servers, directory = sys.argv[1:]
found, main = tempfile._get_default_tempdir, threading.current_thread()

def slow():
    if threading.current_thread() is not main:
        time.sleep(2)
    return found()

tempfile._get_default_tempdir = slow
log = logging.getLogger("app")
log.addHandler(KafkaHandler("logs", bootstrap_servers=servers.split(","), spool_dir=directory))
log.warning("one")
time.sleep(0.5)
process = multiprocessing.get_context("fork").Process(target=log.warning, args=("child",))
process.start()
process.join(60)
if process.is_alive():
    process.kill()
    sys.exit("the child hangs")
"""
    completed(program, options)


def test_a_child_of_multiprocessing_sends_what_it_logged_last(options, fake_kafka):
    """The child's end closed the producer before the handler: records in the queue were dropped, ten seconds later."""
    program = """
import logging, multiprocessing, sys, time
from kafkasafe.logging_handler import KafkaHandler

servers, directory = sys.argv[1:]

def child():
    handler = KafkaHandler("logs", bootstrap_servers=servers.split(","), spool_dir=directory)
    log = logging.getLogger("app")
    log.propagate = False
    log.addHandler(handler)
    log.warning("first")
    handler.flush()
    accept = handler._accept

    def slow(item):
        time.sleep(0.02)
        accept(item)

    handler._accept = slow
    for number in range(20):
        log.warning("last %d", number)

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
if process.is_alive():
    process.kill()
    sys.exit("the child hangs")
"""
    done = completed(program, options)
    assert lines(fake_kafka) == ["first", *(f"last {number}" for number in range(20))], done.stderr
