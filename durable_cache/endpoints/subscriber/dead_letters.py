"""What durable consumers could not process, read back from caches."""

from __future__ import annotations

from collections.abc import Iterator

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import Session, check_session, zid_of
from durable_cache.errors import RemoteProtocolError, StorageUnavailable
from durable_cache.model.sample import Kind, Sample
from durable_cache.protocol.consumers import (
    DeadLetter,
    check_consumer,
    dead_letters_key_expr,
    decode_dead_letter,
)

__all__ = ["DeadLetter", "read_dead_letters"]


def read_dead_letters(
    session: Session,
    consumer: str,
    *,
    domain: str = "default",
    query_timeout_seconds: float = 5.0,
) -> Iterator[DeadLetter]:
    """Yield a consumer's dead letters as caches hold them, by source and number, one of each.

    Each holds the sample as it was delivered. Reads page by page. Raises ConfigError on a bad
    argument, StorageUnavailable, to be tried again, where a cache does not answer, and
    RemoteProtocolError that names the key of a letter that is damaged.
    """
    check_session(session)
    key_expr = str(dead_letters_key_expr(domain, check_consumer(consumer)))
    asking = Asking(session, zid_of(session), timeout_seconds=query_timeout_seconds)
    after: Sample | None = None
    told = ""
    while True:
        page = asking.page(key_expr, "*", "_max=1", after)
        after = page.following(after)
        if not page.whole:
            reason = page.errors[0] if page.errors else "no cache answered"
            raise StorageUnavailable(f"dead letters of {consumer!r} ({reason}); try again")
        for sample in page.ordered():
            if sample.kind is Kind.PUT and sample.key > told:  # a page may repeat the one before
                told = sample.key
                yield _letter(told, sample.payload)
        if after is None:
            return


def _letter(key: str, payload: bytes) -> DeadLetter:
    try:
        return decode_dead_letter(payload)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"the dead letter at {key}: {error}") from error
