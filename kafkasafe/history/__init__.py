"""Compares the past and the present content of a log: epochs, offsets, batches, a consumer's memory. Pure."""
