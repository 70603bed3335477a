"""The state of a dropped producer of this process, for the other producers on its spool directory."""

from __future__ import annotations

from collections.abc import Callable

from kafkasafe.spool.lanes import lane_name


class Predecessor:
    """What other producers in the process can learn about a dropped producer.

    A program may create a second producer on a directory before it drops the first producer. For example, a notebook
    cell with `producer = SafeProducer(...)` runs a second time: Python drops the old value of `producer` only after it
    has created the new value.

    1. The first producer has accepted record 1. No broker answers, so the record waits in lane-000.
    2. The program creates the second producer, on lane-001. Lane-000 still has an owner, so its records do not count as
       records of an earlier incarnation.
    3. The program drops the first producer, which continues to deliver for some seconds.
    4. The second producer accepts record 2, with the same key. The brokers come back. Both lanes are delivered at the
       same time, so record 2 may come before record 1 in the log.

    So from step 3 on, the first producer counts as an earlier incarnation, because it accepts no more records. From
    then on, the second producer holds back its batches until all records that the first producer accepted are delivered
    from lane-000. Before step 3, the second producer does not wait: the first producer could accept ever more records,
    so the wait might never end.

    Only the dropped producer's engine sets the attributes, on its own thread. Any thread may read them.

    Attributes:
        lane: Number of the producer's lane.
        lane_id: Id of the producer's lane.
        end_position: Position in the lane after all records that the producer accepted; None while accepted records are
            not on disk yet.
        owes: Whether records before `end_position` may be undelivered.
        over: Whether the producer has given up its lane.
        is_dropped: True after the program dropped the producer, until the engine reports that all accepted records are
            on disk.
    """

    def __init__(self, lane: int, lane_id: bytes) -> None:
        self.lane = lane
        self.lane_id = lane_id
        self.end_position: int | None = None
        self.owes = True
        self.over = False
        self.is_dropped = False
        self._followers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Predecessor {lane_name(self.lane)} before={self.end_position} owes={self.owes} over={self.over}>"

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` now, and after each change. Takes no lock, because the garbage collector may be the caller."""
        self._followers.append(changed)
        changed()

    def drop(self) -> None:
        """Note that the program has dropped the producer."""
        self.is_dropped = True

    def stored(self, end_position: int, *, owes: bool) -> None:
        """Note that all records that the producer accepted are on disk, in the lane before `end_position`."""
        self.is_dropped = False
        self.owes = owes
        self.end_position = end_position
        self._tell()

    def ended(self, end_position: int, *, owes: bool) -> None:
        """Note that the lane is closed."""
        if self.end_position is None:
            self.end_position = end_position
        self.owes = owes
        self.over = True
        self._tell()
        self._followers.clear()

    def _tell(self) -> None:
        for changed in list(self._followers):
            changed()
