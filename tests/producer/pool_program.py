"""A pool of processes that send and never close: `pool_program.py servers directory fork|spawn|forkserver`."""

import functools
import multiprocessing
import os
import sys

from kafkasafe import SafeProducer

SERVERS, DIRECTORY, METHOD = sys.argv[1:]


@functools.cache
def opened(pid):
    return SafeProducer(bootstrap_servers=SERVERS.split(","), spool_dir=DIRECTORY, linger_ms=1000)


def producer():
    """This process's: one that was opened before a fork is another process's."""
    return opened(os.getpid())


def work(number):
    producer().send("orders", b"%d" % number)
    return os.getpid()


def main():
    producer().send("orders", b"of the parent")
    pool = multiprocessing.get_context(METHOD).Pool(3)
    for _ in pool.imap_unordered(work, range(60), chunksize=1):
        pass
    pool.close()
    pool.join()


if __name__ == "__main__":
    main()
