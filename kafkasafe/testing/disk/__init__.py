"""A simulated disk for tests of programs that store data: it loses power, fails to sync, fills up and gets damaged.

`Disk` is the machine's disk. `DiskFiles` is one process's access to the disk. `DiskFiles` implements the interface
through which the spool uses a disk (`kafkasafe.spool.files.Files`). Several processes can share a disk, as on a real
machine.

    disk = Disk()
    write_something(disk.process())
    for state in disk.crash_states():
        recover(state.disk.process())

Processes always see the newest state, as through a page cache. A loss of power may leave an older state:

* **Data.** A file may contain data written since its last `sync_data`. Each 512-byte sector of the unsynced data may
  survive or be lost, independently of the others. A surviving sector may be torn: its end, at least four bytes, is
  missing. The new size of the file may survive or be lost, independently of the data. So bytes of the file may be
  missing, or zeros may replace data. Bytes that `truncate` removed may reappear.
* **Names.** Names in a directory may have been created, deleted or renamed since its last `sync_directory`. Each
  unsynced change of a name may survive or be lost, independently of the others. A rename is atomic. A rename from one
  directory into another is durable as soon as either directory was synced.
* **A failed `sync_data`.** The data written since the last successful `sync_data` may be lost, as described above, even
  if a later `sync_data` succeeds. To make the data durable, a program must write it again. Until the loss of power,
  processes still read the data that they wrote. (After a failed write, Linux keeps the pages in memory, but marks them
  as clean, so that a second fsync does not write the pages. Until 2018, PostgreSQL assumed that a second fsync writes
  them; this is known as fsyncgate.)
* **A failed `sync_directory`.** All common file systems record changes of names in a journal. So the next
  `sync_directory` that succeeds makes the names durable.

A crash of only the process (`Fault.kill`, `DiskFiles.kill`) loses nothing. The next process sees everything, but a
later loss of power can still lose unsynced data.

Other programs may change the disk of a process; `Disk.remove` stands for `rm -rf`, and `Disk.move` for `mv`.
`Disk.mount` hides a directory behind another volume, and `Disk.unmount` shows it again. Files and directories that a
process has open stay open.
"""

from kafkasafe.testing.disk.durability import SECTOR_BYTES
from kafkasafe.testing.disk.faults import Fault, ProcessKilled
from kafkasafe.testing.disk.machine import CrashState, Disk, DiskFiles
from kafkasafe.testing.disk.operations import (
    Link,
    Operation,
    Rename,
    SyncData,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
)

__all__ = [
    "SECTOR_BYTES",
    "CrashState",
    "Disk",
    "DiskFiles",
    "Fault",
    "Link",
    "Operation",
    "ProcessKilled",
    "Rename",
    "SyncData",
    "SyncDirectory",
    "Truncate",
    "Unlink",
    "Write",
]
