"""Bounds for memory, disk, bytes in flight and waiting. Pure."""
