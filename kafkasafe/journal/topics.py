"""Declares destinations, learns topics, and forgets the offsets of deleted topics and of a former cluster."""

from __future__ import annotations

from kafkasafe import marks as m
from kafkasafe.journal.destinations import Destination, Partition
from kafkasafe.journal.flow import FlowEvent
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.snapshots import state_mark
from kafkasafe.journal.state import JournalState


class Topics:
    """Declares destinations, and keeps track of what the cluster says about their topics."""

    def __init__(self, state: JournalState, packer: Packer, refusals: Refusals) -> None:
        self._destinations = state.destinations
        self._all = state.destinations.all
        self._out = state.out
        self._packer = packer
        self._index = state.index
        self._refusals = refusals
        self._revivals = state.revivals
        self._units = state.units
        self._home = state.home
        self._missing = state.missing

    def destination(self, topic: str, partition: int) -> int:
        """The number of a destination. Declares the destination if it is new."""
        number = self._destinations.number(topic, partition)
        if number is None:
            number = self._destinations.add(topic, partition)
            self._out.ready.persist.marks.append(m.Destination(number, topic, partition))
        return number

    def learn_topic(self, name: str, topic_id: bytes, partition_count: int) -> bool:
        """Remember a topic, and divide batches that wait for its partitions. Returns whether anything was new."""
        topic = m.Topic(name, topic_id, partition_count)
        unassigned = self._destinations.unassigned.get(name)
        if unassigned is not None:
            self._refusals.clear_refusal(unassigned)
            unassigned.rejection.stop()  # the topic exists after all
        if self._destinations.topics.get(name) == topic:
            return False
        self._destinations.learn(topic)
        for index in range(partition_count):
            partition = self._destinations.find(name, index)
            if partition is not None:
                self.note_topic(partition)
        self._out.ready.persist.marks.append(topic)
        if unassigned is not None:
            self._packer.touch(unassigned)
        return True

    def bind(self, cluster_id: str, *, assumed: str | None) -> bool:
        """Note the cluster that answers. If the lane wrote to another cluster before, forget the other cluster's
        offsets and ids, unless batches for the other cluster still wait.

        Args:
            cluster_id: Id of the cluster.
            assumed: The former cluster of the lane, if the lane's log does not name it; None: the lane had no cluster
                yet.

        Returns:
            Whether a former cluster was forgotten.
        """
        moves = self._home.is_other(cluster_id, assumed)
        if moves and any(
            first.former_life or first.identity is not None
            for partition in self._all.values()
            if (first := partition.queue.first) is not None
        ):
            return False
        if moves:
            self._new_cluster()
        if self._home.cluster_id != cluster_id:
            mark = m.Cluster(cluster_id)
            self._home.move(mark, forgets=moves)
            self._out.ready.persist.marks.append(mark)
        return moves

    def _new_cluster(self) -> None:
        """Forget the former cluster, because its offsets and ids do not apply to the new cluster.

        Precondition: no batch waits, except new batches without an id.
        """
        self._home.withdraw()
        self._units.moved()
        self._missing.clear()
        for partition in self._all.values():
            if isinstance(partition, Partition):
                partition.ids.forget()
            self._begin_anew(partition)

    def forget(self, topic: str) -> bool:
        """Forget the offsets of a deleted topic, unless batches for the topic still wait. Returns whether any offsets
        were forgotten.

        The sequences of batch ids continue, so that no id is reused if the topic exists after all.
        """
        partitions = [p for p in self._all.values() if p.topic == topic]
        if any(p.queue or p.log.commits for p in partitions):
            return False
        known = [p for p in partitions if not p.log.knows_nothing]
        for partition in known:
            self._begin_anew(partition)
        if topic in self._destinations.topics:
            unknown = m.Topic(topic, m.NO_TOPIC_ID, -1)
            self._destinations.learn(unknown)
            self._out.ready.persist.marks.append(unknown)
        return bool(known)

    def _begin_anew(self, partition: Destination) -> None:
        """Reset the partition to the state before its first batch was sent, with a mark that does the same in later
        incarnations.
        """
        self.forget_acknowledged(partition)
        partition.progress.on(FlowEvent.FORGOTTEN)
        self._out.ready.persist.marks.append(state_mark(partition))
        self._packer.touch(partition)

    def forget_acknowledged(self, partition: Destination) -> None:
        """Forget acknowledged batches, and all state that depends on them."""
        if isinstance(partition, Partition):
            partition.forget_acknowledged()
            self._revivals.forget(partition.number)
            self._index.unpin(partition.number)
        else:
            partition.log.forget()
        self._units.lines.forget(partition.number)

    def note_topic(self, partition: Destination) -> None:
        """Note the topic id even if the baseline (end offset before this lane's first batch) is not known yet. If an
        atomic batch is staged before the baseline is known, the topic id later shows whether the topic was recreated.
        """
        topic = self._destinations.topics.get(partition.topic)
        if topic is not None and not any(partition.log.topic_id) and partition.log.last_acked_offset < 0:
            partition.log.name_topic(topic.topic_id)
