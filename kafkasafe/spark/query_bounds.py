"""Converts the starting and ending options of a query into offsets of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.cluster.procedures import Procedure
from kafkasafe.spark.brokers import Brokers
from kafkasafe.spark.option_values import error
from kafkasafe.spark.options import Bound, Offsets, ReadOptions, Times
from kafkasafe.spark.positions import Partition, partition_names


class QueryBounds:
    """Evaluates the starting and ending options.

    Args:
        options: Options of the reader.
        brokers: The brokers to ask.
    """

    def __init__(self, options: ReadOptions, brokers: Brokers) -> None:
        self._options = options
        self._brokers = brokers
        self._lookups = brokers.lookups

    def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the first offset that a new query reads, by partition.

        Raises:
            ConfigError: An option does not match the existing partitions, or a time is after the last record.
            SourceUnavailableError: The brokers do not answer.
        """
        return self._resolve(self._options.starting, "starting", partitions)

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns, for each partition, the offset before which a batch query stops. Raises the errors of `begins`."""
        return self._resolve(self._options.ending, "ending", partitions)

    def _resolve(self, bound: Bound, which: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        partitions = list(partitions)
        each = bound.each
        if each is not None:
            missing, unknown = sorted(set(partitions) - set(each)), sorted(set(each) - set(partitions))
            if missing or unknown:
                problems = [f"names {partition_names(unknown)}, which does not exist"] if unknown else []
                problems += [f"lacks {partition_names(missing)}"] if missing else []
                name = f"{which}Offsets" + ("ByTimestamp" if isinstance(bound, Times) else "")
                raise error(
                    "OFFSETS_DO_NOT_MATCH",
                    f"{name} {' and '.join(problems)}: it must name every partition that is read, and no other.",
                )
        return self._brokers.gather(
            {
                partition: self._bound(partition, bound, which, each[partition] if each else bound.everywhere)
                for partition in partitions
            }
        )

    def begin_was_chosen(self, partition: Partition) -> bool:
        """Returns whether a starting offset above the ending offset shows that the options are wrong. It does not show
        this if the query starts at the earliest offset, or if the query starts at a time and ends at the latest offset.
        """
        starting = self._options.starting
        value = starting.everywhere if starting.each is None else starting.each[partition]
        if isinstance(starting, Offsets):
            return value != EARLIEST
        # A starting time after the last record resolves to the end of the log.
        ending = self._options.ending
        return not (isinstance(ending, Offsets) and ending.everywhere == LATEST)

    def is_fixed(self, partition: Partition, begin: int, end: int) -> bool:
        """The starting options now resolve to the offset `begin`. Returns whether they already resolved to `begin` when
        the batch that ends at `end` was planned. Ignores that retention may have moved the start of the log since then:
        `trimmed` checks this.
        """
        starting = self._options.starting
        if isinstance(starting, Offsets):
            return (starting.everywhere if starting.each is None else starting.each.get(partition)) != LATEST
        # The start is given as a time. If the first record at or after this time has an offset below `end`, this record
        # existed when the batch was planned. Otherwise `begin` may be the end of the log, which moves with each
        # appended record.
        return begin < end

    def trimmed(self, begins: Mapping[Partition, int]) -> set[Partition]:
        """Returns the partitions whose starting options may have resolved to an offset below the one in `begins`,
        because retention may have moved the start of the log since then. An offset that the options name cannot move.

        Raises:
            SourceUnavailableError: The brokers do not answer.
        """
        starting = self._options.starting
        moving = [
            partition
            for partition, begin in begins.items()
            if begin > 0
            and not (
                isinstance(starting, Offsets)
                and (starting.everywhere if starting.each is None else starting.each.get(partition))
                != EARLIEST
            )
        ]
        starts = self._brokers.starts(moving) if moving else {}
        return {partition for partition in moving if begins[partition] <= starts[partition]}

    def _bound(self, partition: Partition, bound: Bound, which: str, value: int | None) -> Procedure[int]:
        assert value is not None  # noqa: S101  # there is one value for all partitions, or one for each
        if isinstance(bound, Offsets):
            if value == EARLIEST:
                return (yield from self._lookups.start(*partition))
            end = (yield from self._lookups.end(*partition)).offset
            if value == LATEST:
                return end
            if value > end:
                raise error(
                    "OFFSETS_DO_NOT_MATCH",
                    f"{which}Offsets has {value} for {partition_names([partition])}, which ends at {end}: give an"
                    " offset that is not after the end.",
                )
            return value
        found = (yield from self._lookups.at_time(*partition, value)).offset
        if found >= 0:
            return found
        if which == "starting" and self._options.time_without_record == "error":
            raise error(
                "NO_RECORD_THAT_NEW",
                f"{partition_names([partition])} has no record at or after {value} ms: choose an earlier time, or set"
                ' .option("startingOffsetsByTimestampStrategy", "latest").',
            )
        return (yield from self._lookups.end(*partition)).offset
