"""Delivery: the engine, the thread that runs it, and how callers and coroutines wait for it."""
