"""What Spark says when a job fails, as it said it (4.2; shortened), and what the sink makes of it. Without Spark."""

from __future__ import annotations

import pytest

from kafkasafe.spark.failures import dead_worker

TASK = """An error occurred while calling o86.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 2) (10.0.0.5 executor driver): """
STAGE = """: org.apache.spark.SparkException: Job aborted due to stage failure: ResultStage 8 (collectToPython at x:0) \
has failed the maximum allowable number of times: 4. Most recent failure reason:
"""
PYTHON = """
\tat java.base/java.net.SocketInputStream.read(SocketInputStream.java:168)
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.hasNext(PythonRunner.scala:602)
"""
JDBC = """
\tat java.base/java.net.SocketInputStream.read(SocketInputStream.java:168)
\tat org.postgresql.core.VisibleBufferedInputStream.readMore(VisibleBufferedInputStream.java:161)
\tat org.apache.spark.api.python.BasePythonRunner$WriterIterator.write(PythonRunner.scala:602)
"""
CHANGED = """org.apache.spark.SparkException: Job aborted due to stage failure: A shuffle map stage with indeterminate \
output was failed and retried. However, Spark cannot rollback the ResultStage 8 (collectToPython at x:0) to re-process \
the input data, and has to fail this job. Please eliminate the indeterminacy by checkpointing the RDD before \
repartition and try again.
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2984)
"""
EXITED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting x"


@pytest.mark.parametrize(
    "said",
    [
        TASK + EXITED + PYTHON,
        TASK
        + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Worker died",
        TASK + "java.net.SocketException: Connection reset" + PYTHON,
        TASK + "java.io.IOException: Broken pipe" + PYTHON,
        TASK + "java.io.EOFException" + PYTHON,
        TASK
        + "FetchFailed(BlockManagerId(1, 10.0.0.5, 4, None), shuffleId=0, mapIndex=0, mapId=0, reduceId=1)",
        STAGE + "org.apache.spark.shuffle.FetchFailedException: Connection refused",
        CHANGED,
    ],
)
def test_a_dead_worker_is_known(said):
    reason = dead_worker(said)
    assert reason
    assert reason in said


@pytest.mark.parametrize(
    "said",
    [
        "",
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            "RuntimeError: customer API said: Connection reset by peer"
        ),
        TASK + "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        "RuntimeError: Python worker exited unexpectedly",
        "[USER_RAISED_EXCEPTION] ExecutorLostFailure: Broken pipe SQLSTATE: P0001",
        TASK + "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] ExecutorLostFailure" + PYTHON,
        TASK + "org.postgresql.util.PSQLException: Connection reset" + JDBC,
        TASK + "java.net.SocketException: Connection reset" + JDBC,
        TASK + "java.io.EOFException",
        "RuntimeError: a shuffle map stage with indeterminate output was failed and retried",
    ],
)
def test_an_error_of_the_query_is_no_dead_worker(said):
    assert dead_worker(said) is None
