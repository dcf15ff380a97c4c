"""The clauses of the storage contract, one test each, by theme."""

import pytest

_MODULES = "append fields filters histories hooks lifetime newest paging removal skips"

# A failing assert then shows its values, as it does in a test module.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES.split()))
