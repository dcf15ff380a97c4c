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
    LeftAsTheyAre,
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
from durable_cache.protocol.alignment.split_brain import (
    Correction,
    Facts,
    Healing,
    MergePolicy,
    SplitBrain,
    SplitBrainOptions,
    SplitBrainToken,
    corrections,
    parse_split_brain_token,
    split_brain_token,
)

__all__ = [
    "Aligner",
    "AlignerEvent",
    "AlignerOptions",
    "AlignerOutput",
    "Appended",
    "CacheProfile",
    "ComparisonEnded",
    "ContentEnded",
    "ContentRead",
    "Correction",
    "Facts",
    "FlatRuns",
    "Forgotten",
    "Healing",
    "LeftAsTheyAre",
    "LoadEnded",
    "Loaded",
    "MergePolicy",
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
    "SplitBrain",
    "SplitBrainOptions",
    "SplitBrainToken",
    "StreamLoaded",
    "Tick",
    "Trimmed",
    "corrections",
    "flat",
    "parse_split_brain_token",
    "pull_reply",
    "ranges",
    "split_brain_token",
]
