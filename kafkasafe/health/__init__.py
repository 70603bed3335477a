"""Return types of `health()` of producers and consumers: see docs/operations.md."""

from kafkasafe.health.states import ConsumerHealth, HealthReason, ProducerHealth

__all__ = ["ConsumerHealth", "HealthReason", "ProducerHealth"]
