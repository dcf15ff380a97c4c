"""What a subject sequence costs: memory of the windows, time of a put and of a sample taken.

    python benchmarks/subjects.py --subjects 1000000

Keys have 20 characters. Memory is the resident set's growth, beside what the windows say.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.model.sequence import frame, pack_sequence
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import EngineOptions, EpochsUnknown, Put, Sent, Started
from durable_cache.protocol.publisher.subjects import PublisherWindow
from durable_cache.protocol.subjects import attach
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.subjects import SubjectId, Subjects, SubscriberWindow

SOURCE = SourceId("4f2a9c", 7)
NOW = Moment(0, 1_700_000_000_000_000_000)
ALL = 1 << 40


def resident() -> int:
    """Return the process's resident set in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def key(number: int) -> str:
    """Return a key of 20 characters."""
    return f"fleet/robot/{number:08}"


def memory(subjects: int) -> None:
    """Print what each window takes for so many subjects."""
    before, publisher = resident(), PublisherWindow(ALL, 0)
    for number in range(subjects):
        publisher.following(key(number), number, NOW)
        publisher.sent()
    _say("publisher window", subjects, resident() - before, publisher.bytes)
    before, subscriber = resident(), SubscriberWindow(DeliveryOptions(sub_window_size=ALL))
    for number in range(subjects):
        sequence, place = pack_sequence(frame(NOW.unix_ns), 0), pack_sequence(5, number)
        subscriber.take(SubjectId(SOURCE, key(number)), sequence, place, NOW)
    _say("subscriber window", subjects, resident() - before, subscriber.bytes)


def _say(what: str, subjects: int, taken: int, said: int) -> None:
    print(f"{what}: {subjects:,} subjects take {taken / 1e6:.0f} MB, it says {said / 1e6:.0f} MB,")
    print(f"  {taken / subjects:.0f} B and {said / subjects:.0f} B a subject")


def puts(window_bytes: int | None, count: int = 100_000) -> float:
    """Return the seconds of a put in the engine, of 1,000 keys in turn."""
    options = EngineOptions(history=None, pub_window_bytes=window_bytes)
    engine = PublisherEngine(SOURCE, "00000001", options)
    engine.handle(Started(NOW))
    engine.handle(EpochsUnknown(NOW))
    keys = [key(number) for number in range(1000)]
    sent = Sent()
    began = time.perf_counter()
    for number in range(count):
        on = keys[number % 1000]
        engine.handle(Put(on, Kind.PUT, b"x", "zenoh/bytes", None, number, "4f2a9c", 13, NOW))
        engine.handle(sent)
    return (time.perf_counter() - began) / count


def takes(*, borne: bool, count: int = 100_000) -> float:
    """Return the seconds of a sample in the subscriber's window, of 1,000 keys in turn."""
    subjects, began_frame = Subjects(DeliveryOptions()), frame(NOW.unix_ns)
    samples = []
    for number in range(count):
        on = key(number % 1000)
        sequence = pack_sequence(began_frame, number // 1000)
        attached = attach(None, sequence, on, number) if borne else None
        samples.append(Sample(on, SOURCE, 5, number, b"x", attachment=attached))
    began = time.perf_counter()
    for first in range(0, count, 1000):
        subjects.read(samples[first : first + 1000])
    return (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=int, default=1_000_000)
    memory(parser.parse_args().subjects)
    for what, off, on in (
        ("a put in the engine", puts(None), puts(4_000_000)),
        ("a sample taken", takes(borne=False), takes(borne=True)),
    ):
        print(f"{what}: {off * 1e6:.2f} µs without, {on * 1e6:.2f} µs with a subject sequence")


if __name__ == "__main__":
    main()
