"""One tree of loggers, fields, limits; and no secret in any of it."""

from __future__ import annotations

import ast
import logging
import os
import select
import signal
import threading
from pathlib import Path

import pytest
from programs import python

import kafkasafe
from kafkasafe import config, logs
from kafkasafe.errors import ConfigError
from kafkasafe.logs import WINDOW_S, EventLog, _KafkaPythonFilter, apart, drain, limit_foreign, own_threads

PACKAGE = Path(kafkasafe.__file__).parent


class Kept(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def records(caplog):
    """What arrives at the root of the tree."""
    handler = Kept()
    logger = logging.getLogger("kafkasafe")
    caplog.set_level(logging.DEBUG, "kafkasafe")
    logger.addHandler(handler)
    yield handler.records
    logger.removeHandler(handler)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_records_carry_their_fields_and_the_place_of_the_call(records):
    log = EventLog("producer", client_id="c").bind(lane="lane-000")
    log.warning("%s: %d", "a", 2, event="something", topic="t", partition=0)
    (record,) = records
    assert (record.name, record.levelname, record.getMessage()) == ("kafkasafe.producer", "WARNING", "a: 2")
    assert (record.event, record.client_id, record.lane, record.topic, record.partition) == (
        *("something", "c", "lane-000", "t"),
        0,
    )
    assert record.filename == "test_logs.py"
    assert record.funcName == "test_records_carry_their_fields_and_the_place_of_the_call"


def test_a_traceback_where_one_is_wanted(records):
    log = EventLog("producer")
    try:
        int("x")
    except ValueError:
        log.exception("failed", event="failed")
        log.error("failed", event="failed")  # noqa: TRY400
    assert [bool(record.exc_info) for record in records] == [True, False]


def test_one_thing_once_in_a_while_and_a_kind_not_too_often(records):
    clock = Clock()
    log = EventLog("producer", clock=clock)

    def outage(partitions):
        for _ in range(50):
            for number in range(partitions):
                log.limited(logging.WARNING, "retry", f"t-{number}", "t-%d failed", number, partition=number)

    outage(3)
    assert [record.partition for record in records] == [0, 1, 2]
    outage(100)
    assert len(records) == 10
    assert [record.suppressed for record in records] == [0, 0, 0, 150, 0, 0, 0, 0, 0, 0]
    # Another kind is another thing.
    log.limited(logging.WARNING, "write", "lane", "failed")
    assert len(records) == 11
    clock.now += WINDOW_S
    log.limited(logging.WARNING, "retry", "t-0", "t-%d failed", 0)
    # 50 times 103 calls, less the 10 that were logged and the 150 that were told.
    assert records[-1].suppressed == 50 * 103 - 10 - 150
    assert records[-1].getMessage().endswith("more of this kind were not logged)")


def test_a_signal_handler_may_log_in_the_middle_of_another_line(records):
    log = EventLog("network")

    class Interrupted(dict):
        came = False

        def get(self, *of):
            if not self.came:
                self.came = True
                log.limited(logging.WARNING, "inner", "a", "from the handler")
            return super().get(*of)

    log._limiter._last = Interrupted()
    thread = threading.Thread(
        target=lambda: log.limited(logging.WARNING, "outer", "a", "the line"), daemon=True
    )
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert [record.event for record in records] == ["inner", "outer"]


def test_what_nobody_listens_to_does_not_count(caplog):
    caplog.set_level(logging.WARNING, "kafkasafe")
    log = EventLog("producer", clock=Clock())
    log.limited(logging.INFO, "retry", "t-0", "failed")
    log.limited(logging.WARNING, "retry", "t-0", "failed")
    assert [(record.levelname, record.suppressed) for record in caplog.records] == [("WARNING", 0)]


def test_limits_do_not_grow_without_end():
    clock = Clock()
    log = EventLog("producer", clock=clock)
    for number in range(5000):
        clock.now += 2.0
        log.limited(logging.ERROR, "retry", str(number), "failed")
    assert len(log._limiter._last) <= 1001


def test_what_others_log_passes():
    """kafka-python's records of our own network threads are limited, those of an application's own clients are not."""
    passes = _KafkaPythonFilter(Clock()).filter

    def record():
        return logging.LogRecord("kafka.net.manager", logging.ERROR, "", 0, "Connection failed: %s", (), None)

    assert [passes(record()) for _ in range(3)] == [True] * 3
    own_threads.add(threading.get_ident())
    try:
        assert [passes(record()) for _ in range(3)] == [True, False, False]
    finally:
        own_threads.discard(threading.get_ident())


# -- threads that wait for no handler ----------------------------------------------------------------------------------


@pytest.fixture
def own_writer(monkeypatch):
    """A writer for this thread alone: threads that earlier tests left speak, too, and would be counted."""
    me = threading.get_ident()

    class Own(logs._HandlerThread):
        def put(self, record):
            if threading.get_ident() == me:
                super().put(record)

    monkeypatch.setattr(logs, "_writer", Own())


@pytest.fixture
def blocked(records, own_writer):
    """A handler that does not come to an end before it is released."""
    go_on = threading.Event()

    class Blocking(logging.Handler):
        def emit(self, record):
            go_on.wait(60)

    handler = Blocking()
    logging.getLogger("kafkasafe").addHandler(handler)
    yield go_on
    go_on.set()
    drain(60)
    logging.getLogger("kafkasafe").removeHandler(handler)


def test_a_thread_that_is_apart_waits_for_no_handler(records, blocked):
    log = EventLog("producer", client_id="c")
    with apart():
        try:
            int("x")
        except ValueError:
            log.exception("%s", "a", event="something")
        # Kept, or left out where other tests have let kafka-python say much: in any case it does not wait.
        limit_foreign()
        logging.getLogger("kafka.net.selector").error("of kafka-python's")
        for number in range(20_000):
            log.info("%d", number, event="many")
    assert not drain(0.01)
    blocked.set()
    assert drain(60)
    first, last = records[0], records[-1]
    assert (first.getMessage(), first.event, first.client_id) == ("a", "something", "c")
    # As if it had been handled at once.
    assert (first.filename, first.funcName) == (
        "test_logs.py",
        "test_a_thread_that_is_apart_waits_for_no_handler",
    )
    assert first.thread == threading.get_ident()
    assert first.exc_info[0] is ValueError
    # What there was no room for is counted.
    kept = [int(record.getMessage()) for record in records if record.event == "many"]
    assert kept == list(range(len(kept)))
    log.info("after", event="after")
    with apart():
        log.info("the last one", event="after")
    assert drain(60)
    (dropped,) = (record for record in records if record.event == "log_dropped")
    assert dropped.suppressed + len(kept) == 20_000
    assert last.event in {"many", "log_dropped"}


def test_what_kafka_python_logs_is_as_it_was_when_it_was_said(blocked):
    class Socket:
        at = "127.0.0.1:9092"

        def __str__(self):
            return self.at

    said = []

    class Kept(logging.Handler):
        def emit(self, record):
            said.append((record.getMessage(), record.levelname, record.funcName))

    # Not one of those whose records are limited.
    limit_foreign()
    logger, handler, socket = logging.getLogger("kafka.sasl.plain"), Kept(), Socket()
    filters = list(logger.filters)
    logger.addFilter(logging.getLogger("kafka.net.transport").filters[-1])
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)  # the command line has set another one, in this process
    try:
        with apart():
            EventLog("producer").warning("the handler is busy", event="busy")
            logger.error("%s: the connection was cut", socket)
        socket.at = None  # closed: str() raises TypeError
        blocked.set()
        assert drain(60)
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
        logger.filters[:] = filters
    name = "test_what_kafka_python_logs_is_as_it_was_when_it_was_said"
    assert said == [("127.0.0.1:9092: the connection was cut", "ERROR", name)]


def test_what_is_apart_comes_out_before_the_process_ends():
    script = """
import logging, time
from kafkasafe.logs import EventLog, apart

class Slow(logging.StreamHandler):
    def emit(self, record):
        time.sleep(0.1)
        super().emit(record)

logging.getLogger("kafkasafe").addHandler(Slow())
with apart():
    for number in range(5):
        EventLog("producer").warning("line %d", number, event="something")
"""
    done = python("-c", script, check=True)
    assert done.stderr.splitlines() == [f"line {number}" for number in range(5)]


def test_a_forked_child_logs_what_is_its_own(records):
    log = EventLog("producer")
    with apart():
        log.warning("before", event="something")
    assert drain(60)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with apart():
            log.warning("in the child", event="something")
        done = drain(60) and [record.getMessage() for record in records] == ["before", "in the child"]
        os.write(writing, b"y" if done else b"n")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.waitpid(child, 0)


def ends_in_a_child(work):
    """Whether `work` ends in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        work()
        os.write(writing, b"y")
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], 10)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    answer = os.read(reading, 1) if ready else b""
    os.close(reading)
    return answer == b"y"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_can_log_although_a_thread_of_its_parent_was_about_to():
    """The thread holds a lock at the fork, and does not exist in the child."""
    holding, go_on = threading.Event(), threading.Event()

    class Subject(str):
        __slots__ = ()

        def __hash__(self):
            holding.set()
            go_on.wait(60)
            return super().__hash__()

    log = EventLog("producer")
    thread = threading.Thread(
        target=lambda: log.limited(logging.ERROR, "something", Subject("held"), "message")
    )
    thread.start()
    holding.wait(60)
    try:
        assert ends_in_a_child(lambda: log.limited(logging.ERROR, "something", "about", "message"))
    finally:
        go_on.set()
        thread.join()


RESERVED = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime"}


def calls():
    for path in sorted(PACKAGE.rglob("*.py")):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield path, node


def test_all_loggers_are_in_the_tree_and_all_records_have_an_event():
    seen = 0
    for path, node in calls():
        where = f"{path.name}:{node.lineno}"
        if node.func.attr == "getLogger":
            named = ast.unparse(node.args[0])
            # The command line silences kafka-python; logs.py limits it.
            others = path.name == "logs.py" or path.parts[-2:] == ("cli", "__init__.py")
            assert "kafkasafe" in named or named == "__name__" or others, where
        if "spark" in path.parts:
            continue
        base = ast.unparse(node.func.value)
        if base.split(".")[-1] in {"log", "_log"} and node.func.attr in {
            *("debug", "info", "warning", "error", "exception", "limited"),
        }:
            seen += 1
            names = {keyword.arg for keyword in node.keywords}
            assert node.func.attr == "limited" or "event" in names, where
            assert not names & RESERVED, where
    assert seen > 30


def test_no_secret_in_errors_or_reprs():
    secret = "hunter2"
    options = {"bootstrap_servers": "x:1", "sasl_plain_password": secret, "ssl_password": secret}
    told = repr(config.validate(options)) + repr(config.validate_consumer(options))
    for wrong in (
        {"security_protocol": "SASL"},
        {"acks": 7},
        {"sasl_plain_pasword": secret},
        {"linger_ms": "x"},
    ):
        with pytest.raises(ConfigError) as raised:
            config.validate({**options, **wrong})
        told += str(raised.value) + repr(raised.value)
    assert secret not in told


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_knows_no_network_threads_of_its_parent():
    """A new thread of the child may get the ident of one of them. What kafka-python logs there was then limited."""
    ident = -1
    own_threads.add(ident)
    try:
        child = os.fork()
        if child == 0:
            os._exit(1 if ident in own_threads else 7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ident in own_threads
    finally:
        own_threads.discard(ident)
