"""Measures how long no leader decided about a batch, so that the producer can log an outage's end and length."""

from __future__ import annotations

from typing import Final

from kafkasafe.codes.verdicts import AnswerAction, ProduceVerdict, Scope

_SHORT_S: Final = 10.0
"""Outages shorter than this many seconds are not logged: an election or the restart of a broker may cause them."""


class Outage:
    """The time in which the cluster cannot take a batch. All partitions share one `Outage`.

    An outage begins with a request that fails because of the cluster, or with the start of a producer, which can send
    nothing before the cluster has answered. An outage ends as soon as the cluster answers about anything: if a leader
    acknowledges or rejects a batch, if its log contains a batch in doubt or cannot show one, or if the cluster refuses
    a topic (missing, forbidden). So the time for which a batch waits for a topic, for a decision, or for the disk is no
    part of an outage. The outage is reported when a leader decides about a batch: then records are delivered again. Of
    several outages before this decision, the longest is reported.

    If the failed requests were about partitions, only an answer about one of these partitions ends the outage. While
    one of several brokers is down, the partitions of the other brokers neither begin nor end an outage.

    Args:
        now: The time at which the producer starts, in seconds.
    """

    def __init__(self, now: float) -> None:
        self._began: float | None = now
        self._answered: float | None = None
        """Time of the first answer of the cluster since the last failure; None if none has come."""
        self._longest: tuple[float, float] | None = None
        """Begin and end of the longest earlier outage that is not reported yet."""
        self._failed: set[tuple[str, int] | None] = set()
        """The partitions with a failure since the outage began; None: the failure was one of all partitions."""
        self._starting = True

    @property
    def begun(self) -> bool:
        """Whether an outage has begun that is not reported yet."""
        return self._began is not None

    def failed(self, now: float, partition: tuple[str, int] | None = None) -> None:
        """Note that a request had no answer, or that the cluster was not ready for it. `partition` is None if the
        request was not about a partition.
        """
        self._starting = False
        if self._began is None:
            self._began = now
        elif self._answered is not None and now - self._answered >= _SHORT_S:
            over = self._began, self._answered
            self._longest = max(self._longest or over, over, key=_length)
            self._began = now
            self._failed.clear()
        self._failed.add(partition)
        self._answered = None

    def connected(self, now: float) -> None:
        """Note an answer to a metadata request. The first one ends the outage that may have begun with the producer.
        Later ones end no outage: a broker may give metadata while the leader of a partition does not answer.
        """
        if self._starting:
            self._starting = False
            self.answered(now)

    def answered(self, now: float, partition: tuple[str, int] | None = None) -> None:
        """Note an answer that shows that the cluster works, but does not decide about a batch. `partition` is None if
        the answer was not about a partition.
        """
        if self._answered is None and (partition is None or self.concerns(partition)):
            self._answered = now

    def concerns(self, partition: tuple[str, int] | None) -> bool:
        """Whether the partition's leader can end the outage: the partition has failed, or none in particular has."""
        return not self._failed or not self._failed.isdisjoint((partition, None))

    def refused(
        self,
        verdict: ProduceVerdict,
        now: float,
        waiting_since: float,
        partition: tuple[str, int] | None = None,
    ) -> float:
        """Note a refusal. A final rejection ends an outage as an acknowledgement does.

        Returns:
            What `decided` returns; 0 if the refusal is not final.
        """
        if verdict.action is AnswerAction.REJECT_BATCH:
            return self.decided(now, waiting_since, partition)
        if verdict.action is AnswerAction.RETRY and verdict.scope is not Scope.DESTINATION:
            self.failed(now, partition)
        else:
            self.answered(now, partition)
        return 0.0

    def decided(self, now: float, waiting_since: float, partition: tuple[str, int] | None = None) -> float:
        """Note that a leader acknowledged or rejected a batch, or that its log contains a batch in doubt.

        Args:
            now: Seconds.
            waiting_since: Time at which the oldest waiting batch was submitted, in seconds, by the clock of `now`. An
                outage in which nothing waited does not count.
            partition: Whose leader decided.

        Returns:
            The length of the outage in seconds; 0 if the outage is too short to report, or is one of other partitions.
        """
        if self._began is None or not self.concerns(partition):
            return 0.0
        waits = [(self._began, now if self._answered is None else self._answered)]
        if self._longest is not None:
            waits.append(self._longest)
        self._began = self._answered = self._longest = None
        self._failed.clear()
        self._starting = False
        length = max(ended - max(began, waiting_since) for began, ended in waits)
        return length if length >= _SHORT_S else 0.0


def _length(outage: tuple[float, float]) -> float:
    began, ended = outage
    return ended - began
