"""Are contradictory profiles refused in words, and inconsistent ones told apart?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from durable_cache.errors import ConfigError
from durable_cache.protocol.reader.profile import (
    PROFILES,
    DestinationOrder,
    DurabilityKind,
    Profile,
    Reliability,
    find_profile,
)

CONSISTENT = PROFILES["eventually-consistent"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"depth": 3, "samples_max_per_instance": 2},
            "depth 3 is above samples_max_per_instance 2",
        ),
        ({"depth": None}, r"KEEP_ALL .* memory is bounded: set samples_max or"),
        (
            {"depth": None, "samples_max": 1, "samples_max_per_instance": 2},
            "samples_max_per_instance 2 is above samples_max 1",
        ),
        ({"depth": 3, "samples_max": 2}, "depth 3 is above samples_max 2"),
        ({"depth": 0}, "depth is a whole number above 0, not 0"),
        ({"depth": True}, "depth is a whole number"),
        ({"samples_max": -1}, "samples_max is a whole number"),
        ({"instances_max": None}, "instances_max is a whole number"),
        ({"writers_max": 1.5}, "writers_max is a whole number"),
        ({"durability": "transient"}, "durability is one of DurabilityKind.VOLATILE, "),
        ({"reliability": True}, "reliability is one of Reliability.BEST_EFFORT, "),
        ({"destination_order": None}, "destination_order is one of "),
    ],
)
def test_a_contradiction_is_refused_in_words(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Profile(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (replace(CONSISTENT, reliability=Reliability.BEST_EFFORT), ["is not recovered"]),
        (replace(CONSISTENT, durability=DurabilityKind.VOLATILE), ["joins late"]),
        (replace(CONSISTENT, durability=DurabilityKind.TRANSIENT_LOCAL), ["joins late"]),
        (
            replace(CONSISTENT, destination_order=DestinationOrder.BY_RECEPTION_TIMESTAMP),
            ["what came to it last"],
        ),
        (PROFILES["dds-default"], ["is not recovered", "joins late", "what came to it last"]),
    ],
)
def test_why_a_profile_is_not_consistent_is_said_in_words(
    profile: Profile, words: list[str]
) -> None:
    sentences = profile.inconsistencies
    assert len(sentences) == len(words)
    for sentence, word in zip(sentences, words, strict=True):
        assert word in sentence
    with pytest.raises(ConfigError, match=words[-1]):
        profile.require_consistent()


@pytest.mark.parametrize(
    "profile",
    [
        CONSISTENT,
        replace(CONSISTENT, durability=DurabilityKind.PERSISTENT),
        replace(CONSISTENT, depth=None, samples_max=10),
        replace(CONSISTENT, auto_dispose_unregistered_instances=False),
    ],
)
def test_a_consistent_profile_says_nothing(profile: Profile) -> None:
    assert profile.inconsistencies == ()
    assert profile.require_consistent() is profile


def test_profiles_are_found_by_name() -> None:
    assert find_profile("eventually-consistent") is CONSISTENT
    assert find_profile(CONSISTENT) is CONSISTENT
    with pytest.raises(ConfigError, match="'x': write a Profile or one of eventually-consistent"):
        find_profile("x")


@pytest.mark.parametrize(
    ("profile", "history"),
    [
        (Profile(), False),
        (Profile(durability=DurabilityKind.TRANSIENT, depth=4), 4),
        (Profile(durability=DurabilityKind.TRANSIENT_LOCAL, depth=None, samples_max=9), True),
    ],
)
def test_what_is_asked_of_caches_first(profile: Profile, history: bool | int) -> None:
    assert profile.history == history
    assert isinstance(profile.history, bool) == isinstance(history, bool)


def test_dds_disposes_by_default_and_we_do_not() -> None:
    assert not Profile().auto_dispose_unregistered_instances
    assert all(profile.auto_dispose_unregistered_instances for profile in PROFILES.values())
