"""What holds for all tests, whoever runs them: property tests have no clock, and Ctrl-C is heard."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Machines that run tests are often busy.
settings.register_profile(
    "milepost",
    parent=settings.default,
    deadline=None,
    suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("milepost")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> Iterator[None]:
    """A shell's job in the background ignores SIGINT, and so would all that these tests start."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
