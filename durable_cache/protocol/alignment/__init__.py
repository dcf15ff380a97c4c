"""How caches come to hold the same samples: the aligner, what goes in and comes out, its options.

This is the door: other rooms import from here, and only tests look behind it.
"""

from durable_cache.protocol.alignment.aligner import Aligner
from durable_cache.protocol.alignment.announcements import PeerStatus
from durable_cache.protocol.alignment.answers import pull_reply
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
    flat,
    ranges,
)
from durable_cache.protocol.alignment.scope import Scope
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
