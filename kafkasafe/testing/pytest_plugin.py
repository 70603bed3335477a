"""pytest fixtures for tests on a real Kafka."""
