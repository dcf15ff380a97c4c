"""The only room that imports zenoh: what comes from a session becomes ours here, and back.

Everything else speaks of `Sample`, key strings and bytes. The zenoh types that public signatures
need are re-exported.
"""

from __future__ import annotations

from zenoh import (
    CongestionControl,
    Encoding,
    KeyExpr,
    Locality,
    Priority,
    Query,
    Reliability,
    Session,
    Timestamp,
    TimestampInstrumentation,
    ZError,
    ext,
)

from durable_cache.endpoints.session.arguments import (
    IntoBytes,
    IntoEncoding,
    IntoKeyExpr,
    Origins,
    check_session,
    is_sendable,
    read_bytes,
    read_encoding,
    read_origins,
    read_qos,
    read_stamp,
    read_text,
    unsendable,
    while_open,
    zenoh_qos,
)
from durable_cache.endpoints.session.asking import (
    Answer,
    PlainReply,
    QueryParts,
    Replies,
    ask,
    ask_later,
    get_plain,
    query_parts,
    refuse,
    reply_bytes,
    reply_error,
    reply_sample,
)
from durable_cache.endpoints.session.declared_keys import DeclaredKeys
from durable_cache.endpoints.session.declaring import (
    Listening,
    RawSample,
    Token,
    TokenChanges,
    TokenSample,
    ZenohSubscriber,
    answer_at_once,
    beat,
    declare_heartbeats,
    declare_heartbeats_polled,
    declare_native_token,
    declare_own_publisher,
    declare_subscriber,
    declare_token,
    hear_at_once,
    hear_plain,
    hear_polled,
    hear_queries,
    hear_writes,
    is_matched,
    put_own,
    put_plain,
    receive,
    receive_now,
    receive_soon,
    source_of,
    take_heard,
    take_heartbeats,
    take_token_changes,
    tokens_for_certain,
    tokens_now,
    tokens_watched,
    undeclare,
    watch_samples,
    watch_tokens,
    watch_tokens_polled,
)
from durable_cache.endpoints.session.decoding import (
    NO_SOURCE,
    Decoder,
    build_timestamp,
    new_timestamp,
    raw_timestamp,
)
from durable_cache.endpoints.session.handling import is_fifo, read_callback, ring_capacity
from durable_cache.endpoints.session.leaving import close_at_exit, run_within, start_thread
from durable_cache.endpoints.session.opening import (
    close_session,
    log_as_environment_says,
    neighbours,
    open_session,
    read_config,
    zid_of,
)
from durable_cache.endpoints.session.sample_names import ZenohSample
from durable_cache.endpoints.session.sending import Outlet, send
