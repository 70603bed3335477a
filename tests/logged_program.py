"""A program that logs into Kafka: `logged_program.py servers directory how`; prints READY when its first lines are on disk."""

import atexit
import logging
import logging.config
import multiprocessing
import sys
import time

servers, directory, how = sys.argv[1:]
CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(name)s %(message)s"}},
    "handlers": {
        "kafka": {
            "class": "kafkasafe.logging_handler.KafkaHandler",
            "topic": "logs",
            "key": "%(name)s",
            "formatter": "plain",
            "bootstrap_servers": servers.split(","),
            "spool_dir": directory,
        }
    },
    "root": {"level": "DEBUG", "handlers": ["kafka"]},
}
app = logging.getLogger("app")


def child(number):
    app.info("child %d", number)


def main():
    # Registered before logging is configured: runs after the handler's producer would have closed by itself.
    atexit.register(lambda: app.info("last words"))
    logging.config.dictConfig(CONFIG)
    for number in range(100):
        app.info("line %d", number)
    if how == "exit":
        for number in range(3):
            process = multiprocessing.get_context("fork").Process(target=child, args=(number,))
            process.start()
            process.join()
        app.info("parent goes on")
        return
    logging.getLogger().handlers[0].flush()
    print("READY", flush=True)
    while True:
        time.sleep(1)


main()
