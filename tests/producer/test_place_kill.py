"""The spool of a living process is moved, deleted, rotated or hidden; then it is killed: nothing promised is missing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import harness
import lives
import pytest
from waiting import until

from kafkasafe import cli
from kafkasafe.testing import FakeCluster

pytestmark = pytest.mark.crash

SMALL = {"spool_max_bytes": 16 << 20, "spool_segment_bytes": 1 << 20, "max_request_size": 200_000}


class Scene:
    """A cluster that cannot be reached, and processes that are promised something."""

    def __init__(self, cluster: FakeCluster, zygote, directory: Path) -> None:
        self.cluster = cluster
        self.topic = harness.new_topic(cluster, 1)
        self.directory = directory
        self.spool = directory / "spool"
        self.lives: list = []
        self._zygote = zygote
        self.servers = ",".join(cluster.bootstrap_servers)
        cluster.refuse()
        cluster.cut()

    def start(self, spool: Path | None = None, **options) -> int:
        """A process begins; its number."""
        number = len(self.lives)
        life = self._zygote.fork(
            lives.promise,
            self.directory / "lives.log",
            servers=self.cluster.bootstrap_servers,
            topic=self.topic,
            spool=str(spool or self.spool),
            book=str(self.directory / f"book-{number}"),
            first=number * 1_000_000,
            options={**SMALL, **options},
        )
        self.lives.append(life)
        self.more(number, 20)
        return number

    def promised(self, number: int) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return [int(line) for line in (self.directory / f"book-{number}").read_text().splitlines()]
        return []

    def until(self, number: int, condition) -> None:
        try:
            until(lambda: condition() or self.lives[number].ended() is not None, 60)
            assert condition(), "it ended"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.lives[number].tail()}") from None

    def more(self, number: int, records: int) -> None:
        """So many more are called durable."""
        before = len(self.promised(number))
        self.until(number, lambda: len(self.promised(number)) >= before + records)

    def seen(self, number: int) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / f"book-{number}.events").read_text().splitlines()
        return []

    def notices(self, number: int, what: str) -> None:
        self.until(number, lambda: what in self.seen(number))

    def kill(self) -> None:
        for life in self.lives:
            assert life.kill() == -9

    def deliver(self, *directories: Path) -> None:
        """`spool drain` of each directory ends well, and all that was promised is in the log, once and in order."""
        self.cluster.restore()
        for directory in directories or (self.spool,):
            with pytest.raises(SystemExit) as ended:
                cli.main(["spool", "drain", str(directory), "-b", self.servers])
            assert ended.value.code in {0, None}
        promised = [number for each in range(len(self.lives)) for number in self.promised(each)]
        log = harness.read_log(self.cluster.bootstrap_servers, self.topic)
        harness.audit(log, promised, ordered=len(self.lives) == 1)


@pytest.fixture
def scene(zygote, tmp_path):
    with FakeCluster() as cluster:
        scene = Scene(cluster, zygote, tmp_path)
        yield scene
        for life in scene.lives:
            if life.ended() is None:
                life.kill()


def logs(scene: Scene) -> list[Path]:
    return sorted((scene.spool / "lane-000").glob("*.log"))


def remove_all(path: Path) -> None:
    """`rm -rf`, against an owner that makes new files meanwhile."""
    for _ in range(100):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def rotate(scene: Scene) -> None:
    """As logrotate does with `create`."""
    for path in logs(scene):
        path.rename(path.with_name(f"{path.name}.1"))
        path.touch()


def delete(paths) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


WAYS = {
    "mv DIR elsewhere": lambda scene: scene.spool.rename(scene.directory / "away"),
    "mv DIR/lane-000 elsewhere": lambda scene: (scene.spool / "lane-000").rename(scene.directory / "away"),
    "rm -rf DIR": lambda scene: remove_all(scene.spool),
    "rm -rf DIR/lane-000": lambda scene: remove_all(scene.spool / "lane-000"),
    "rm DIR/lane-000/*": lambda scene: delete(p for p in (scene.spool / "lane-000").iterdir() if p.is_file()),
    "rm DIR/lane-000/*.log": lambda scene: delete(logs(scene)),
    "rm DIR/*": lambda scene: delete(path for path in scene.spool.iterdir() if path.is_file()),
    "logrotate": rotate,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_promised_is_delivered_after_kill_9(scene, way):
    """durable() said yes 199 of 199 times, and the next start delivered 0."""
    scene.start()
    WAYS[way](scene)
    scene.until(0, lambda: scene.seen(0))
    scene.more(0, 20)
    if way.startswith("rm -rf"):
        # It takes many steps: a look in between finds a place that cannot be had back yet.
        scene.until(0, lambda: scene.seen(0)[-1].endswith("True 0"))
        assert all(line.endswith(" 0") for line in scene.seen(0)), scene.seen(0)
    else:
        assert all(line.endswith("True 0") for line in scene.seen(0)), scene.seen(0)
    scene.kill()
    scene.deliver()


@pytest.mark.parametrize("way", ["mv DIR elsewhere", "rm -rf DIR"])
def test_the_spool_is_taken_from_a_living_process_and_another_one_starts(scene, way):
    """`spool drain` ended with "60 records delivered, 0 left", exit 0, and 300 of 360 promised records were missing."""
    scene.start()
    WAYS[way](scene)
    scene.start()
    scene.until(0, lambda: scene.seen(0))
    for _ in range(3):
        scene.more(0, 20)
        scene.more(1, 20)
    scene.kill()
    scene.deliver()
    if way.startswith("mv"):
        assert not list((scene.directory / "away").glob("lane-*"))


def test_a_deploy_switches_a_link(scene):
    """Each stays in the directory that it opened, and the old one says so."""
    link = scene.directory / "current"
    for release in ("1", "2"):
        (scene.directory / release).mkdir()
    link.symlink_to(scene.directory / "1")
    scene.start(link / "spool")
    (scene.directory / "next").symlink_to(scene.directory / "2")
    (scene.directory / "next").replace(link)
    scene.start(link / "spool")
    scene.notices(0, "link False 0")
    scene.more(0, 20)
    scene.more(1, 20)
    scene.kill()
    scene.deliver(scene.directory / "1" / "spool", scene.directory / "2" / "spool")
    assert scene.seen(1) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_two_containers_have_one_volume(scene):
    """Two processes find it at other paths: each takes a lane of its own; one of them deletes what it takes for old."""
    (scene.directory / "volume").mkdir()
    paths = [scene.directory / name for name in ("one", "two")]
    with contextlib.ExitStack() as stack:
        for path in paths:
            path.mkdir()
            stack.enter_context(mounted("--bind", scene.directory / "volume", path))
        for path in paths:
            scene.start(path / "spool", client_id=path.name)
        assert sorted(p.name for p in (paths[0] / "spool").glob("lane-*")) == ["lane-000", "lane-001"]
        remove_all(paths[1] / "spool" / "lane-000")
        scene.until(0, lambda: scene.seen(0))
        scene.more(0, 20)
        scene.more(1, 20)
        assert scene.seen(1) == []
        scene.kill()
        scene.deliver(paths[1] / "spool")


@contextlib.contextmanager
def mounted(*arguments: object):
    if subprocess.run(["mount", *map(str, arguments)], check=False).returncode:
        pytest.skip("it may not mount here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(arguments[-1])], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_another_volume_is_mounted_and_goes_again(scene):
    """What is written meanwhile is not where the next start looks: it is not called durable."""
    scene.start()
    with mounted("-t", "tmpfs", "-o", "size=8m", "tmpfs", scene.spool):
        scene.notices(0, "moved False 0")
        before = scene.promised(0)
        again = scene.start()
        assert len(scene.promised(0)) <= len(before) + 1
        scene.lives[again].kill()
        meanwhile = scene.promised(again)
        with pytest.raises(SystemExit) as ended:
            cli.main(["spool", "drain", str(scene.spool), "-b", scene.servers, "--timeout", "1s"])
        assert ended.value.code != 0
        scene.cluster.restore()
        with pytest.raises(SystemExit) as ended:
            cli.main(["spool", "drain", str(scene.spool), "-b", scene.servers])
        assert ended.value.code in {0, None}
        scene.cluster.refuse()
        scene.cluster.cut()
        assert meanwhile
    scene.notices(0, "moved True 0")
    scene.more(0, 20)
    assert scene.lives[0].kill() == -9
    scene.deliver()


def test_a_file_that_is_cut_is_written_again_from_memory_or_is_a_loss_that_is_told(scene):
    """logrotate with copytruncate: what was in it is in a copy that nothing here knows of."""
    scene.start()
    cut = logs(scene)
    for path in cut:
        shutil.copy(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    scene.until(0, lambda: scene.seen(0))
    scene.more(0, 5)
    scene.kill()
    if not scene.seen(0)[0].endswith(" 0"):
        scene.cluster.restore()
        with pytest.raises(SystemExit) as ended:
            cli.main(["spool", "drain", str(scene.spool), "-b", scene.servers])
        assert ended.value.code == 1
        for path in cut:
            path.with_name(f"{path.name}.1").rename(path)  # the copies are good
    scene.deliver()
