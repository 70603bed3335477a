"""Encodes and decodes record batches, and the records in them, as Python objects or as Arrow columns. Pure."""
