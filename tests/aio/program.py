"""A program that is killed: prints the number of each record that `durable()` confirmed, or is acknowledged."""

import asyncio
import itertools
import sys

from kafkasafe.aio import SafeProducer


async def main(servers, directory, first, topic):
    async with SafeProducer(bootstrap_servers=servers.split(","), spool_dir=directory) as producer:

        async def one(number):
            future = await producer.send(topic, b"%d" % number)
            await future.durable()
            print(number, flush=True)

        async with asyncio.TaskGroup() as tasks:
            for number in itertools.count(first):
                tasks.create_task(one(number))
                if number % 20 == 0:
                    await asyncio.sleep(0.001)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
