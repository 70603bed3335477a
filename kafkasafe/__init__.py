"""Lossless Kafka producers and consumers."""
