"""zenoh.ext's names for reliable publishers and subscribers: what ports by changing an import.

A program that says ``from zenoh.ext import …`` says ``from durable_cache.ext import …`` and runs as
before, on numbered samples, durable caches and exactly-once delivery. `docs/porting.md` lists what
differs. The serializers are zenoh's own.
"""

from __future__ import annotations

from durable_cache.endpoints.advanced import (
    AdvancedPublisher,
    AdvancedSubscriber,
    CacheConfig,
    HistoryConfig,
    MissDetectionConfig,
    RecoveryConfig,
    RepliesConfig,
    declare_advanced_publisher,
    declare_advanced_subscriber,
)
from durable_cache.endpoints.session import ZenohSample as Sample
from durable_cache.endpoints.session import ext as _zenoh_ext
from durable_cache.endpoints.subscriber import Miss
from durable_cache.endpoints.subscriber import MissListener as SampleMissListener

Float32, Float64 = _zenoh_ext.Float32, _zenoh_ext.Float64
Int8, Int16, Int32 = _zenoh_ext.Int8, _zenoh_ext.Int16, _zenoh_ext.Int32
Int64, Int128 = _zenoh_ext.Int64, _zenoh_ext.Int128
UInt8, UInt16, UInt32 = _zenoh_ext.UInt8, _zenoh_ext.UInt16, _zenoh_ext.UInt32
UInt64, UInt128 = _zenoh_ext.UInt64, _zenoh_ext.UInt128
ZDeserializeError = _zenoh_ext.ZDeserializeError
z_deserialize, z_serialize = _zenoh_ext.z_deserialize, _zenoh_ext.z_serialize

__all__ = [
    "AdvancedPublisher",
    "AdvancedSubscriber",
    "CacheConfig",
    "Float32",
    "Float64",
    "HistoryConfig",
    "Int128",
    "Int16",
    "Int32",
    "Int64",
    "Int8",
    "Miss",
    "MissDetectionConfig",
    "RecoveryConfig",
    "RepliesConfig",
    "Sample",
    "SampleMissListener",
    "UInt128",
    "UInt16",
    "UInt32",
    "UInt64",
    "UInt8",
    "ZDeserializeError",
    "declare_advanced_publisher",
    "declare_advanced_subscriber",
    "z_deserialize",
    "z_serialize",
]
