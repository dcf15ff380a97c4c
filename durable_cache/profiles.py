"""Profiles and what readers with one return, by DDS's names; one door for all of them.

`declare_reliable_subscriber(session, key_expr, profile="eventually-consistent")` needs none of
these: they are for who makes a profile of their own, or asks for some states only.
"""

from __future__ import annotations

from durable_cache.protocol.reader.instances import (
    InstanceSample,
    InstanceState,
    InstanceStatus,
    SampleState,
    ViewState,
)
from durable_cache.protocol.reader.profile import (
    PROFILES,
    DestinationOrder,
    DurabilityKind,
    Profile,
    Reliability,
)
from durable_cache.protocol.reader.statuses import (
    LivelinessChanged,
    LostReason,
    SampleLost,
    SubscriptionMatched,
)

__all__ = [
    "PROFILES",
    "DestinationOrder",
    "DurabilityKind",
    "InstanceSample",
    "InstanceState",
    "InstanceStatus",
    "LivelinessChanged",
    "LostReason",
    "Profile",
    "Reliability",
    "SampleLost",
    "SampleState",
    "SubscriptionMatched",
    "ViewState",
]
