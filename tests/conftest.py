"""For all tests."""

from hypothesis import HealthCheck, settings

# A machine that is busy is no failure: how long an example takes says nothing about whether it is right.
settings.register_profile("kafkasafe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kafkasafe")
