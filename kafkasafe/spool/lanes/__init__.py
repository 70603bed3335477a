"""A spool directory, its lanes, and the owners of the lanes.

The process that holds the flock(2) on a lane's lock file owns the lane. The kernel releases the lock when the process
dies, for whatever reason. So a dead process never owns a lane, and two running processes never own the same lane. A
forked child inherits the open lock file. The child closes its copy at once, which does not release the parent's lock.
"""

from kafkasafe.spool.lanes.directory import SpoolDirectory
from kafkasafe.spool.lanes.format import format_lost, lane_name
from kafkasafe.spool.lanes.lock import DirectoryStanding, LaneLock

__all__ = ["DirectoryStanding", "LaneLock", "SpoolDirectory", "format_lost", "lane_name"]
