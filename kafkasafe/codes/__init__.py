"""Kafka's error codes: their table, their names, and what a code means for a request. Pure."""
