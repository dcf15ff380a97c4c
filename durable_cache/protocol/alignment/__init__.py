"""How caches come to hold the same samples: the aligner, what goes in and comes out, its options.

This is the door: other rooms import from here, and only tests look behind it.
"""

from durable_cache.protocol.alignment.aligner import (
    Aligner,
)
from durable_cache.protocol.alignment.announcements import (
    PeerStatus,
)
from durable_cache.protocol.alignment.answers import (
    pull_reply,
)
from durable_cache.protocol.alignment.events import (
    AlignerEvent,
    AlignerOptions,
    AlignerOutput,
    Appended,
    CacheProfile,
    ComparisonEnded,
    ContentEnded,
    ContentRead,
    Forgotten,
    Loaded,
    LoadEnded,
    Offer,
    PeerGone,
    PeerSeen,
    PublishRoot,
    Purged,
    RaisePurge,
    ReadSamples,
    ReplyReceived,
    ReportRefusal,
    RequestFailed,
    RequestReceived,
    RootReceived,
    SendReply,
    SendRequest,
    StreamLoaded,
    Tick,
    Trimmed,
)
from durable_cache.protocol.alignment.knowledge import (
    FlatRuns,
    flat,
    ranges,
)
from durable_cache.protocol.alignment.scope import (
    Scope,
)

__all__ = [
    "Aligner",
    "AlignerEvent",
    "AlignerOptions",
    "AlignerOutput",
    "Appended",
    "CacheProfile",
    "ContentEnded",
    "ContentRead",
    "FlatRuns",
    "Forgotten",
    "LoadEnded",
    "Loaded",
    "Offer",
    "PeerGone",
    "PeerSeen",
    "PeerStatus",
    "PublishRoot",
    "Purged",
    "RaisePurge",
    "ReadSamples",
    "ReplyReceived",
    "ReportRefusal",
    "RequestFailed",
    "RequestReceived",
    "RootReceived",
    "Scope",
    "SendReply",
    "SendRequest",
    "ComparisonEnded",
    "StreamLoaded",
    "Tick",
    "Trimmed",
    "flat",
    "pull_reply",
    "ranges",
]
