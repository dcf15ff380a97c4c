"""What a publisher's options mean to its engine, and which are refused by their names."""

from __future__ import annotations

import pytest

from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import with_named


def test_the_lower_of_the_two_bounds_of_open_receipts_counts() -> None:
    options = PublisherOptions(acknowledgements=1, receipts_max=10, unacknowledged_max=20)
    assert options.engine_options().unacknowledged_max == 10
    options = PublisherOptions(acknowledgements=1, receipts_max=20, unacknowledged_max=10)
    assert options.engine_options().unacknowledged_max == 10


def test_without_time_for_it_caches_are_not_asked_for_epochs() -> None:
    assert PublisherOptions(epochs_timeout_seconds=0.5).engine_options().ask_epochs
    assert not PublisherOptions(epochs_timeout_seconds=0).engine_options().ask_epochs


@pytest.mark.parametrize(
    ("name", "value"),
    [("receipts_max", 0), ("queries_waiting_max", 0), ("epochs_timeout_seconds", -1)],
)
def test_a_bound_that_lets_nothing_through_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected a .* got {value}"):
        PublisherOptions(**{name: value}).checked()  # type: ignore[arg-type]


def test_an_option_that_is_misspelt_is_named_with_what_is_nearest() -> None:
    options = with_named("declare", PublisherOptions(), {"acknowledgements": 2})
    assert options.acknowledgements == 2
    with pytest.raises(
        TypeError,
        match=r"^declare\(\) got an unexpected keyword argument 'acknowledgments'; "
        r"did you mean 'acknowledgements'\?$",
    ):
        with_named("declare", PublisherOptions(), {"acknowledgments": 2})
