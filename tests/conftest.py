"""Property tests are judged by what they find, never by the clock: machines that run tests are often busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "milepost",
    parent=settings.default,
    deadline=None,
    suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("milepost")
