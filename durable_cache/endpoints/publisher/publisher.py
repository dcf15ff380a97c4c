"""A publisher whose samples can be recovered: numbered, kept for a while, acknowledged on wish.

The shell around `PublisherEngine`. Two locks, taken in this order: `_sending` keeps puts in the
order of their numbers and is held while Zenoh sends; `changed` guards the engine and is never held
while anything waits. Acknowledgements are counted on Zenoh's thread; one thread of ours answers the
publisher's own cache and runs the program's callbacks.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Condition, RLock, Thread, current_thread
from typing import TYPE_CHECKING, Generic, TypeVar, assert_never

from durable_cache.endpoints.ahead import read_own_stamp
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.closing import Closing
from durable_cache.endpoints.publisher.callbacks import Callbacks
from durable_cache.endpoints.publisher.epochs import ask_epochs
from durable_cache.endpoints.publisher.in_reach import CachesInReach, resend
from durable_cache.endpoints.publisher.jobs import run_jobs
from durable_cache.endpoints.publisher.keys import OwnKeys
from durable_cache.endpoints.publisher.lacking import Lacking, too_few
from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.endpoints.publisher.own_cache import OwnCache
from durable_cache.endpoints.publisher.receipts import Receipt
from durable_cache.endpoints.publisher.room import Room
from durable_cache.endpoints.session import (
    IntoBytes,
    IntoEncoding,
    IntoKeyExpr,
    Outlet,
    Query,
    Session,
    Timestamp,
    ZenohSubscriber,
    ZError,
    answer_at_once,
    beat,
    close_at_exit,
    declare_native_token,
    declare_own_publisher,
    declare_token,
    hear_at_once,
    is_matched,
    raw_timestamp,
    read_bytes,
    read_encoding,
    send,
    source_of,
    start_thread,
    take_token_changes,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.endpoints.waking import Waiters
from durable_cache.errors import (
    Closed,
    ConfigError,
    LocalProtocolError,
    OutcomeUnknown,
    RemoteProtocolError,
)
from durable_cache.model.arguments import read_timeout
from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.run_name import INCARNATION_DIGITS
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.timestamp import read_ntp64
from durable_cache.protocol.disposals import UNREGISTERED
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    Declare,
    Event,
    Finished,
    Form,
    Full,
    HandedOver,
    Hurry,
    Keep,
    Kept,
    Output,
    Put,
    Resend,
    ResendFailed,
    Resent,
    Send,
    SendFailed,
    Sent,
    Spooled,
    Standing,
    Started,
    Tick,
    TokenDeclared,
    TokenFailed,
)
from durable_cache.protocol.publisher.subjects import PublisherWindow
from durable_cache.protocol.wire import (
    ack_key,
    decode_ack,
    publisher_token,
    tokens_about,
)

if TYPE_CHECKING:
    from durable_cache.endpoints.publisher.spool import Spool

ReceiptT_co = TypeVar("ReceiptT_co", bound=Receipt | None, covariant=True)
"""What `put` returns: a Receipt where acknowledgements are wanted, else None."""
_log = logging.getLogger(__name__)
_SENT = Sent()
_PUT = Kind.PUT
_JOIN_SECONDS_MAX = 1.0


class ReliablePublisher(Closing, Generic[ReceiptT_co]):
    """A Zenoh publisher that stamps every sample with its source and number (RFC).

    Any thread may put. A context manager; close it before its session.
    """

    def __init__(
        self, session: Session, key_expr: KeyExpression, options: PublisherOptions
    ) -> None:
        self._session = session
        self._options = options
        qos, encoding = options.quality, options.encoding
        self._encoding = "zenoh/bytes" if encoding is None else read_encoding(encoding)
        # Locks that a thread may take twice: a signal's handler runs wherever its thread is.
        self._sending = RLock()
        self._is_putting = False
        """Whether the thread that holds `_sending` is in a put."""
        self._closes_behind_put = False
        """Whether it was closed within that put."""
        self._lock = RLock()
        self.changed = Condition(self._lock)
        self.closed = False
        self._wants = options.acknowledgements > 0
        self.key_expr = key_expr
        self.waiters: Waiters[Standing] = Waiters()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Questions up to `queries_waiting_max`; callbacks up to the bound of receipts, for a put
        waits while so many are not called yet."""
        self._callbacks = Callbacks(self.changed, self._jobs)
        bounds = options.engine_options()
        self._caches = CachesInReach(options.domain, key_expr, bounds.acknowledgers_max)
        self._lacking = Lacking(key_expr, options.acknowledgements)
        self._heartbeats = options.heartbeats()
        self._tokens: ZenohSubscriber | None = None
        self._thread: Thread | None = None
        self._token: object = None
        self._declared: list[object] = []
        self._publisher = declare_own_publisher(
            session,
            str(key_expr),
            qos,
            self._encoding,
            reliability=options.reliability,
            destination=options.destination,
        )
        self._outlet = Outlet(session, self._publisher, self._encoding, options.destination)
        on = str(key_expr) if key_expr.is_key else ""
        self._form = Form(on, _PUT, self._encoding, "", qos.pack())
        """Of a put that names nothing else; its key is empty where each put must name one."""
        self.source: SourceId = source_of(self._publisher)
        """The EntityGlobalId every sample carries."""
        self._keys = OwnKeys(session, self.source, key_expr, options)
        incarnation = secrets.token_hex(INCARNATION_DIGITS // 2)
        self._spool: Spool | None = None
        try:
            self._spool = options.open_spool(key_expr)
            spooled = None if self._spool is None else self._spool.spooled
            self._engine = PublisherEngine(self.source, incarnation, bounds, spooled=spooled)
            self._room = Room(self, self._engine, self._jobs, options)
            self._own_cache = OwnCache(self._engine, self.changed, str(key_expr))
            self._start(spooled or ())
        except BaseException:
            self.close()
            raise
        close_at_exit(self, session)

    def _start(self, spooled: Sequence[Spooled]) -> None:
        session, options = self._session, self._options
        self._keys.show()
        self._do(self._tell(Started(moment_now())))
        if options.acknowledgements:
            for source in {self.source, *(left.source for left in spooled)}:
                key = ack_key(options.domain, source)
                self._declared.append(hear_at_once(session, key, self._acknowledged))
            pattern = tokens_about(options.domain, "history", self.key_expr)
            self._tokens = watch_tokens_polled(session, pattern)
            self._declared.append(self._tokens)
        if options.cache:
            own = f"{self.source}/{self.key_expr}"
            self._declared.append(answer_at_once(session, own, self._asked))
        if options.detectable:
            self._declared.append(declare_native_token(session, str(self.key_expr), self.source))
        if self._declared or self._heartbeats:
            looks = self._look_around if self._tokens or self._heartbeats else None
            run = partial(run_jobs, self._jobs, looks, str(self.key_expr))
            self._thread = self._room.thread = start_thread(run, "dc-publisher")

    @property
    def epoch(self) -> int:
        """The time frame in which the numbering began, or one above all that caches knew of it."""
        return self._engine.epoch

    @property
    def incarnation(self) -> str:
        """Names the numbering whatever the clock; a new one at start and at every wrap."""
        return self._engine.incarnation

    @property
    def subjects(self) -> PublisherWindow | None:
        """The window of subject sequences, to be looked at; None without `subject_sequences`."""
        return self._engine.subjects

    @property
    def next_sn(self) -> int:
        """The number the next sample will have."""
        return self._engine.next_sn

    @property
    def unacknowledged(self) -> int:
        """Samples that wait for the acknowledgements wanted."""
        return self._engine.unacknowledged

    @property
    def query_errors(self) -> int:
        """Questions to this publisher's own cache that could not be answered."""
        return self._own_cache.errors

    @property
    def matched(self) -> bool:
        """Whether some subscriber or cache listens to this publisher now."""
        return not self.closed and is_matched(self._publisher)

    def put(
        self,
        payload: IntoBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoBytes | None = None,
        key: IntoKeyExpr | None = None,
        timestamp: Timestamp | None = None,
    ) -> ReceiptT_co:
        """Publish a value; returns a receipt when acknowledgements are wanted.

        `key` names one key of a publisher with wildcards; `timestamp` stands for the session's own.
        Raises Closed; ConfigError on an argument Zenoh cannot send, or a timestamp over half a
        second ahead; Unacknowledged when too many samples wait for acknowledgements; ZError
        from Zenoh when the sample did not leave. Its number is not used then.
        """
        is_plain = encoding is None and attachment is None and key is None and timestamp is None
        if is_plain and type(payload) is bytes and self._form.key:  # as nearly always
            return self._publish(self._form, payload, None, None, None)
        chosen = self._encoding if encoding is None else read_encoding(encoding)
        read = payload if type(payload) is bytes else read_bytes(payload, "payload")
        stamp = None if timestamp is None else read_own_stamp(self._session, timestamp)
        return self.publish(_PUT, read, chosen, attachment, key, stamp)

    def delete(
        self,
        *,
        attachment: IntoBytes | None = None,
        key: IntoKeyExpr | None = None,
        timestamp: Timestamp | None = None,
    ) -> ReceiptT_co:
        """Publish that the key has no value any more; numbered and stored like a put."""
        stamp = read_own_stamp(self._session, timestamp)
        return self.publish(Kind.DELETE, b"", "zenoh/bytes", attachment, key, stamp)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until as many caches as were wanted hold everything that was put before this call.

        What they lack a twentieth of a second after it was put is sent to them once more. Where no
        acknowledgements are wanted there is nothing to wait for. Raises Closed, or OutcomeUnknown
        when the time is over, here or for some sample: it may be stored all the same.
        """
        timeout_seconds = read_timeout(timeout_seconds)
        if not self._options.acknowledgements:
            return
        before = self._engine.unknown
        self._do(self._tell(Hurry(moment_now())))
        if self._room.await_acknowledged(timeout_seconds) and self._engine.unknown == before:
            return
        if self.closed:
            raise Closed(f"the publisher on {self.key_expr} was closed")
        waiting, unknown = self._engine.unacknowledged, self._engine.unknown - before
        wanted, seen = self._options.acknowledgements, self._engine.caches_in_reach
        failure = self._engine.last_failure or ("" if seen >= wanted else too_few(seen))
        raise OutcomeUnknown(
            f"{waiting + unknown} samples on {self.key_expr} are not known to be held by "
            f"{wanted} caches; they may be all the same" + (f" ({failure})" if failure else "")
        )

    def wait_for_all_acked(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything put before this call is acknowledged; False when it is not known.

        As rmw's `wait_for_all_acked`: it hurries nothing. In a callback of a receipt it does not
        wait. Raises ConfigError where no acknowledgements are wanted.
        """
        timeout_seconds = read_timeout(timeout_seconds)
        if not self._options.acknowledgements:
            raise ConfigError("acknowledgements=0: nothing is acknowledged to this publisher")
        before = self._engine.unknown
        return self._room.await_acknowledged(timeout_seconds) and self._engine.unknown == before

    @property
    def unknown(self) -> int:
        """Samples that waited for `unacknowledged_seconds_max` in vain: they may be stored."""
        return self._engine.unknown

    @property
    def resend_error(self) -> str:
        """Why a cache did not take what was sent to it once more; empty where none refused."""
        return self._engine.last_failure

    def unregister(self, key: IntoKeyExpr | None = None) -> ReceiptT_co | None:
        """Tell readers with a profile that this publisher writes a key no more, until it does.

        With `auto_dispose_unregistered_instances` it deletes it first, with a mark by which caches
        know that it is disposed and unregistered; raises what `delete` does.
        """
        on = self._keys.read_one(key)
        disposes = self._keys.auto_dispose
        receipt = self.delete(key=key, attachment=UNREGISTERED) if disposes else None
        with self._sending:
            if self.closed:
                raise Closed(f"the publisher on {self.key_expr} is closed")
            self._keys.unregister(on)
        return receipt

    def kept(self) -> list[Sample]:
        """Return the samples of the publisher's own cache, oldest first."""
        with self.changed:
            return self._engine.kept()

    def publish(
        self,
        kind: Kind,
        payload: bytes,
        encoding: str,
        attached: IntoBytes | None,
        named: IntoKeyExpr | None,
        given: Timestamp | None,
    ) -> ReceiptT_co:
        """Publish as `put` and `delete` do, with a timestamp that another clock may have given."""
        attachment = None if attached is None else read_bytes(attached, "attachment")
        key = None if named is None else self._keys.read(named)
        stamp_id = "" if given is None else raw_timestamp(given)[1]
        form = Form(key or self._form.key, kind, encoding, stamp_id, self._form.qos)
        if not form.key:
            raise ConfigError(f"name the key: this publisher is on {self.key_expr}")
        return self._publish(form, payload, attachment, key, given)

    def _publish(
        self,
        form: Form,
        payload: bytes,
        attachment: bytes | None,
        key: str | None,
        given: Timestamp | None,
    ) -> ReceiptT_co:
        """Publish what was read; `key` is None where it goes on the publisher's own."""
        deadline, paced, room = 0.0, True, self._room
        while True:
            with self._sending:
                if self.closed or self._is_putting:
                    raise room.refusal()
                try:
                    self._is_putting = True
                    if self._jobs.qsize() <= room.jobs_max:
                        outlet = self._outlet
                        stamp = outlet.new_stamp() if given is None else given
                        now = Moment(time.monotonic_ns(), time.time_ns())
                        if self._wants:
                            with self._lock:
                                sending = self._engine.number(form, payload, attachment, stamp, now)
                        else:  # it changes nothing that other threads look at
                            sending = self._engine.number(form, payload, attachment, stamp, now)
                        if sending is not None:  # it needs nothing else (ADR 0200)
                            try:
                                send(outlet, sending, key, stamp)
                            except BaseException as error:
                                self._not_sent(error)
                                raise
                            if self._wants:
                                with self._lock:
                                    self._engine.sent()
                            else:  # others take the history as it is at one moment (ADR 0318)
                                self._engine.sent()
                            if self._own_cache.reading:
                                with self._lock:
                                    self.changed.notify_all()
                        else:
                            put = Put.of(form, payload, attachment, read_ntp64(stamp), now)
                            sending = self._send_put(put, key, stamp, paced=paced)
                        if sending is not None:
                            if self._keys.unregistered:
                                self._keys.register(form.key)
                            standing = sending.standing
                            # As the overloads of `declare_reliable_publisher` say.
                            return None if standing is None else Receipt(self, standing)  # type: ignore[return-value]
                except ZError as error:
                    if self._closes_behind_put:
                        raise room.refusal() from error
                    raise
                finally:
                    self._is_putting = False
                    if self._closes_behind_put:
                        self._undeclare()
            # Not while `_sending` is held: whoever waits longest is not who must go first.
            deadline = deadline or time.monotonic() + self._options.put_timeout_seconds
            paced = room.wait(deadline)

    def _send_put(self, put: Put, key: str | None, stamp: Timestamp, *, paced: bool) -> Send | None:
        """Carry out what a put needs; None where there is no room for it, or its turn is to come.

        Whatever it raises, the engine is told what became of it.
        """
        if paced and self._room.holds_up():
            return None
        sending, kept = None, False
        if self._engine.under_way is not None:
            self._ended(_SENT)  # Ctrl-C ended that put: its sample may have left with its number
        outputs = self._tell(put)
        if isinstance(outputs[0], Full):
            return None
        try:
            for output in outputs:
                if isinstance(output, Send):
                    sending = output
                    stamp = stamp if put.timestamp_id else self._outlet.named(stamp)
                    send(self._outlet, output, key, stamp)
                elif isinstance(output, Keep) and self._spool is not None:
                    self._spool.append(output.sample, output.incarnation)
                    self._tell(Kept())
                    kept = True
                else:
                    self._do((output,))
        except BaseException as error:
            self._not_sent(error)
            if not (kept and isinstance(error, Exception)):
                raise
            _log.warning("a sample is sent later, from the spool", extra={"reason": str(error)})
            return sending
        self._ended(_SENT)
        return sending

    def _not_sent(self, error: BaseException) -> None:
        # Ctrl-C is raised behind the call into Zenoh: the sample may have left with its number.
        self._ended(SendFailed() if isinstance(error, Exception) else _SENT)

    def _ended(self, event: Sent | SendFailed) -> None:
        with self._lock:
            self._engine.handle(event)
            if self._own_cache.reading or isinstance(event, SendFailed):
                self.changed.notify_all()

    def _tell(self, event: Event) -> list[Output]:
        with self._lock:
            return self._engine.handle(event)

    def _do(self, outputs: Iterable[Output]) -> None:
        """Carry out everything but `Send` and `Full`, which are of the put that waits for them."""
        for output in outputs:
            match output:
                case Declare(epoch, incarnation):
                    self._declare(epoch, incarnation)
                case AskEpochs():
                    timeout = self._options.epochs_timeout_seconds
                    answer = ask_epochs(self._session, self.source, self.key_expr, timeout)
                    self._do(self._tell(answer))
                case Finished(standings):
                    self._finished(standings)
                case Resend():
                    timeout = self._options.resend_timeout_seconds
                    resend(self._session, self._options.domain, output, timeout, self._resent)
                case HandedOver(source, last_sn, first_sn):
                    beat(self._session, str(self.key_expr), source, last_sn, first_sn)
                case Send() | Keep() | Full():
                    raise LocalProtocolError("nothing is being put")
                case _:
                    assert_never(output)

    def _declare(self, epoch: int, incarnation: str) -> None:
        domain, on = self._options.domain, str(self.key_expr)
        try:
            if self._spool is not None:
                self._spool.begin(self.source, epoch, incarnation)
            self._outlet.name(self._engine.timestamp_id)
            token = declare_token(
                self._session, publisher_token(domain, self.source, epoch, incarnation, on)
            )
        except BaseException:
            self._tell(TokenFailed(incarnation))
            raise
        before, self._token = self._token, token
        self._tell(TokenDeclared(incarnation))
        if before is not None:
            undeclare(before)

    def _resent(self, event: Resent | ResendFailed) -> None:
        self._jobs.put(lambda: self._do(self._tell(event)))

    def _look_around(self) -> None:
        """See which caches are in reach and do what is due."""
        if self.closed:
            return
        if self._heartbeats is not None:
            with self._lock:
                last_sn = self._heartbeats.due(self._engine.next_sn, time.monotonic())
            if last_sn is not None:
                beat(self._session, str(self.key_expr), self.source, last_sn)
        if self._tokens is None:
            return
        for event in self._caches.changes(take_token_changes(self._tokens)):
            self._tell(event)
        with self._lock:
            wake_ns, waits = self._engine.wake_ns(), self._engine.unacknowledged > 0
            seen = self._engine.caches_in_reach
        self._lacking.look(seen, time.monotonic_ns(), waits=waits)
        if wake_ns is not None and wake_ns <= time.monotonic_ns():
            self._do(self._tell(Tick(moment_now())))

    def _acknowledged(self, payload: bytes) -> None:
        try:
            ack = decode_ack(payload)
        except RemoteProtocolError:
            return  # a damaged acknowledgement is no answer
        self._do(self._tell(AckReceived(ack, time.monotonic_ns())))

    @property
    def callback_errors(self) -> int:
        """What the program's own callbacks raised."""
        return self._callbacks.errors

    def call_when_done(self, receipt: Receipt, callback: Callable[[Receipt], object]) -> None:
        """Call `callback(receipt)` once when the receipt is done, on the publisher's thread."""
        self._callbacks.add(receipt, callback)
        if receipt._standing.done:
            self._finished((receipt._standing,))

    def _finished(self, standings: Sequence[Standing]) -> None:
        with self._lock:
            self.changed.notify_all()
            if self.waiters:
                for standing in standings:
                    self.waiters.wake(standing)
        if self._spool is not None:
            # Not on Zenoh's thread: it would wait for the fsync of a put.
            self._jobs.put(partial(self._spool.settle, standings))
        self._callbacks.finished(standings)

    def _asked(self, query: Query) -> None:
        with self._lock:
            # Who asks is told at once that there is no answer, and asks again: what is put behind
            # the end of `_jobs` would be held, and waited for, until the asker's time is over.
            if self.closed or self._jobs.qsize() >= self._options.queries_waiting_max:
                self._own_cache.errors += not self.closed
                return
            self._jobs.put(partial(self._own_cache.answer, query, time.monotonic()))

    def close(self) -> None:
        """Undeclare everything; idempotent. Receipts still open stay unknown.

        Called within a put, as from a signal's handler, it takes effect when that put ends.
        """
        with self._sending:
            with self.changed:
                if self.closed:
                    return
                self._closes_behind_put = self._is_putting
                self.closed = True
                self.changed.notify_all()
                self.waiters.wake_all()
            if self._closes_behind_put:
                return
        self._undeclare()

    def _undeclare(self) -> None:
        for declared in (self._token, *self._declared, self._publisher):
            if declared is not None:
                undeclare(declared)
        self._keys.close()
        self._jobs.put(None)
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(_JOIN_SECONDS_MAX)
        if self._spool is not None:
            self._spool.close()

    undeclare = close
