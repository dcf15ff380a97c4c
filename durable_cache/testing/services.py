"""May a test that needs a server be skipped here, or must it fail?"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRE_VARIABLE = "DURABLE_CACHE_REQUIRE"


def require(name: str, reason: str) -> NoReturn:
    """Skip the running test because the service `name` is not there, unless it must be.

    ``DURABLE_CACHE_REQUIRE`` holds the names, separated by commas, that may not be skipped: for
    those the test fails. Call it only where the service's own variable is unset; a variable that
    is set but leads nowhere is a failure in any case.
    """
    required = {part.strip() for part in os.environ.get(REQUIRE_VARIABLE, "").split(",")}
    if name in required:
        pytest.fail(f"{name} is required by {REQUIRE_VARIABLE}, but {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")
