"""The only room that imports zenoh: what comes from a session becomes ours here, and back.

Everything else speaks of `Sample`, key strings and bytes. The zenoh types that public signatures
need are re-exported.
"""

from __future__ import annotations

from zenoh import Config, KeyExpr, Publisher, Query, Session, ZError, ext, handlers

from durable_cache.endpoints.session.arguments import (
    IntoBytes,
    IntoEncoding,
    IntoKeyExpr,
    read_bytes,
    read_encoding,
    read_text,
)
from durable_cache.endpoints.session.asking import (
    Answer,
    QueryParts,
    ask,
    ask_peer,
    query_parts,
    reply_bytes,
    reply_error,
    reply_sample,
)
from durable_cache.endpoints.session.declaring import (
    Listening,
    Origins,
    Queryable,
    Token,
    ZenohSubscriber,
    declare_heartbeats,
    declare_own_publisher,
    declare_queryable,
    declare_subscriber,
    declare_token,
    hear,
    is_matched,
    is_zenoh_channel,
    put_own,
    receive,
    receive_query,
    send,
    source_of,
    undeclare,
    watch_tokens,
)
from durable_cache.endpoints.session.decoding import (
    NO_SOURCE,
    Decoder,
    build_timestamp,
    new_timestamp,
    raw_timestamp,
)
from durable_cache.endpoints.session.leaving import close_at_exit, start_thread
from durable_cache.endpoints.session.opening import (
    close_session,
    open_session,
    read_config,
    zenoh_reason,
    zid_of,
)

__all__ = [
    "Answer",
    "Config",
    "Decoder",
    "IntoBytes",
    "IntoEncoding",
    "IntoKeyExpr",
    "KeyExpr",
    "Listening",
    "NO_SOURCE",
    "Origins",
    "Publisher",
    "Query",
    "QueryParts",
    "Queryable",
    "Session",
    "Token",
    "ZError",
    "ZenohSubscriber",
    "ask",
    "ask_peer",
    "build_timestamp",
    "close_at_exit",
    "close_session",
    "declare_heartbeats",
    "declare_own_publisher",
    "declare_queryable",
    "declare_subscriber",
    "declare_token",
    "ext",
    "handlers",
    "hear",
    "is_matched",
    "is_zenoh_channel",
    "new_timestamp",
    "open_session",
    "put_own",
    "query_parts",
    "raw_timestamp",
    "read_bytes",
    "read_config",
    "read_encoding",
    "read_text",
    "receive",
    "receive_query",
    "reply_bytes",
    "reply_error",
    "reply_sample",
    "send",
    "source_of",
    "start_thread",
    "undeclare",
    "watch_tokens",
    "zenoh_reason",
    "zid_of",
]
