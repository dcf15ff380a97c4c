"""Does a subscriber with a profile keep instances as DDS says, with real sessions and tokens?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import zenoh

from durable_cache import (
    Profile,
    ReliablePublisher,
    ReliableReader,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import (
    Session,
    build_timestamp,
    ext,
    tokens_now,
)
from durable_cache.errors import Closed, ConfigError
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.profiles import (
    DestinationOrder,
    DurabilityKind,
    InstanceSample,
    InstanceState,
    LostReason,
    SampleLost,
    SampleState,
)
from durable_cache.protocol.wire import own_key, parse_publisher_token
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.faults import ModuleProcess
from tests.kit.proxy import TcpProxy
from tests.servers.zenoh_sources import Numbered, connected

CONSISTENT = "eventually-consistent"
ALIVE = InstanceState.ALIVE
DISPOSED = InstanceState.NOT_ALIVE_DISPOSED
NO_WRITERS = InstanceState.NOT_ALIVE_NO_WRITERS
DEEP = Profile(depth=9, destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP)


def writing(
    session: Session, reader: ReliableReader, key: str = "a/b", **settings: object
) -> ReliablePublisher[Any]:
    """Declare a publisher that the reader knows of and hears."""
    before = reader.subscription_matched_status().current
    publisher: ReliablePublisher[Any]
    publisher = declare_reliable_publisher(session, key, **settings)  # type: ignore[call-overload]
    connected(publisher._publisher)
    wait_until(lambda: reader.subscription_matched_status().current > before)
    return publisher


def states(reader: ReliableReader) -> dict[str, InstanceState]:
    return {each.key: each.instance_state for each in reader.read()}


def payloads(found: list[InstanceSample]) -> list[bytes]:
    return [each.sample.payload for each in found if each.sample is not None]


def timeline(found: list[InstanceSample]) -> list[str]:
    names = {DISPOSED: "D", NO_WRITERS: "NW"}
    return [
        names[each.message.state] if each.message else each.sample.payload.decode()  # type: ignore[union-attr]
        for each in found
    ]


def test_samples_are_read_again_and_taken_once(network: LocalNetwork) -> None:
    with declare_reliable_subscriber(network.client(), "a/**", profile=DEEP) as reader:
        publisher = writing(network.client(), reader, "a/*")
        assert not reader.wait(0)
        for at in range(4):
            publisher.put(b"%d" % at, key=f"a/{at % 2}")
        wait_until(lambda: len(reader.read()) == 4)
        assert reader.wait(0) is False, "all that came was read"
        found = reader.read(SampleState.READ)
        assert payloads(found) == [b"0", b"2", b"1", b"3"]
        assert {each.sample_state for each in found} == {SampleState.READ}
        assert payloads(reader.take()) == payloads(found)
        assert reader.take() == []
        publisher.put(b"4", key="a/0")
        assert reader.wait(10)
        (last,) = reader.take()
        assert (last.sample_state, last.instance_state) == (SampleState.NOT_READ, ALIVE)
        publisher.close()


def test_a_late_joiner_sees_what_those_before_it_see(network: LocalNetwork) -> None:
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", profile=CONSISTENT) as early,
    ):
        staying = writing(network.client(), early, "a/*")
        leaving = writing(network.client(), early, "a/*")
        for at in range(3):
            staying.put(b"s%d" % at, key="a/staying")
            leaving.put(b"l%d" % at, key="a/leaving")
        staying.delete(key="a/deleted")
        wait_until(lambda: cache.status().appended == 7)
        leaving.close()
        wait_until(lambda: early.liveliness_changed_status().alive == 1)
        expected = {"a/staying": ALIVE, "a/leaving": NO_WRITERS, "a/deleted": DISPOSED}
        wait_until(lambda: states(early) == expected, what=f"{expected}")
        last = [b"", b"l2", b"s2"]
        wait_until(lambda: sorted(payloads(early.read())) == last, what="the last of each")
        with declare_reliable_subscriber(network.client(), "a/**", profile=CONSISTENT) as late:
            wait_until(lambda: states(late) == expected, what=f"{expected} for who comes late")
            wait_until(lambda: sorted(payloads(late.read())) == last, what="the same, later")
        staying.close()


@pytest.mark.parametrize(("auto_dispose", "state"), [(True, DISPOSED), (False, NO_WRITERS)])
def test_a_publisher_that_closes_ends_its_instances(
    network: LocalNetwork, auto_dispose: bool, state: InstanceState
) -> None:
    with declare_reliable_subscriber(network.client(), "a/**", profile=DEEP) as reader:
        publisher = writing(
            network.client(), reader, auto_dispose_unregistered_instances=auto_dispose
        )
        publisher.put(b"1")
        wait_until(lambda: states(reader) == {"a/b": ALIVE})
        publisher.close()
        wait_until(lambda: states(reader) == {"a/b": state})
        liveliness, matched = (
            reader.liveliness_changed_status(),
            reader.subscription_matched_status(),
        )
        assert (liveliness.alive, liveliness.not_alive) == (0, 1)
        assert (matched.current, matched.total) == (0, 1)
        assert liveliness.last == matched.last == publisher.source


@pytest.mark.parametrize(("auto_dispose", "message"), [(True, "D"), (False, "NW")])
def test_the_timelines_of_a_link_that_is_cut_and_heals(
    network: LocalNetwork, auto_dispose: bool, message: str
) -> None:
    port = int(network.endpoint.rpartition(":")[2])
    with (
        TcpProxy(port) as proxy,
        declare_reliable_subscriber(network.client(), "a/**", profile=DEEP) as reader,
    ):
        session = network.client(
            connect={
                "endpoints": [f"tcp/127.0.0.1:{proxy.port}"],
                "timeout_ms": -1,
                "retry": {"period_init_ms": 50, "period_max_ms": 50},
            }
        )
        publisher = writing(session, reader, auto_dispose_unregistered_instances=auto_dispose)
        publisher.put(b"S")
        wait_until(lambda: timeline(reader.read()) == ["S"])
        proxy.cut()
        wait_until(lambda: timeline(reader.read()) == ["S", message], 30, "the end of the link")
        proxy.heal()
        wait_until(lambda: timeline(reader.read()) == ["S", message, "S"], 30, "the link again")
        found = reader.read()
        assert [each.generation_count for each in found] == [0, 0, 1]
        assert {each.instance_state for each in found} == {ALIVE}
        assert reader.subscription_matched_status().total == 2
        publisher.put(b"later")
        wait_until(lambda: timeline(reader.read())[3:] == ["later"])
        publisher.close()


def test_unregister_leaves_a_key_without_writers_until_it_is_written(
    network: LocalNetwork,
) -> None:
    with declare_reliable_subscriber(network.client(), "a/**", profile=DEEP) as reader:
        publisher = writing(network.client(), reader, "a/*", unregistered_max=1)
        for key in ("a/1", "a/2"):
            publisher.put(b"x", key=key)
        wait_until(lambda: states(reader) == {"a/1": ALIVE, "a/2": ALIVE})
        assert publisher.unregister("a/1") is None
        wait_until(lambda: states(reader) == {"a/1": NO_WRITERS, "a/2": ALIVE})
        publisher.unregister("a/2")
        wait_until(lambda: states(reader) == {"a/1": NO_WRITERS, "a/2": NO_WRITERS})
        publisher.put(b"y", key="a/1")
        wait_until(lambda: states(reader) == {"a/1": ALIVE, "a/2": NO_WRITERS})
        pattern = own_key("default", "unregistered", "**")
        wait_until(lambda: len(tokens_now(network.router, pattern, 1)) == 1)
        publisher.put(b"y", key="a/2")
        wait_until(lambda: not tokens_now(network.router, pattern, 1))
        for wrong in ("a/*", "b"):
            with pytest.raises(ConfigError):
                publisher.unregister(wrong)
        publisher.close()
        with pytest.raises(Closed):
            publisher.unregister("a/1")


def test_unregister_of_a_disposing_publisher_deletes(network: LocalNetwork) -> None:
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", profile=DEEP) as reader,
    ):
        publisher = writing(
            network.client(),
            reader,
            auto_dispose_unregistered_instances=True,
            acknowledgements=1,
            level="memory",
        )
        publisher.put(b"x")
        receipt = publisher.unregister()
        assert receipt.wait(10)
        wait_until(lambda: states(reader) == {"a/b": DISPOSED})
        assert cache.status().appended == 2
        publisher.close()


def test_the_token_of_a_publisher_is_what_earlier_peers_read(network: LocalNetwork) -> None:
    session = network.client()
    with declare_reliable_publisher(
        session, "a/b", auto_dispose_unregistered_instances=True
    ) as publisher:
        pattern = own_key("default", "pub", "**")
        wait_until(lambda: tokens_now(network.router, pattern, 1))
        (key,) = tokens_now(network.router, pattern, 1)
        assert key.split("/")[5:] == [f"{publisher.epoch}-{publisher.incarnation}", "a", "b"]
        token = parse_publisher_token(key, "default")
        assert token is not None
        assert token.source == publisher.source


@pytest.mark.parametrize(("auto_dispose", "state"), [(True, DISPOSED), (False, NO_WRITERS)])
def test_a_native_publisher_takes_the_setting_of_the_reader(
    network: LocalNetwork, auto_dispose: bool, state: InstanceState
) -> None:
    profile = Profile(
        destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP,
        auto_dispose_unregistered_instances=auto_dispose,
    )
    with declare_reliable_subscriber(network.client(), "a/**", profile=profile) as reader:
        native = ext.declare_advanced_publisher(
            network.client(),
            "a/b",
            sample_miss_detection=ext.MissDetectionConfig(),
            publisher_detection=True,
        )
        wait_until(lambda: reader.liveliness_changed_status().alive == 1)

        def is_heard() -> bool:
            native.put(b"x")
            return states(reader) == {"a/b": ALIVE}

        wait_until(is_heard)
        native.undeclare()
        wait_until(lambda: states(reader) == {"a/b": state})
        assert payloads(reader.read()) == [b"x"]


def test_an_older_sample_is_reported_where_a_newer_one_was_taken(network: LocalNetwork) -> None:
    told: list[SampleLost] = []
    # Nobody is there who knows history: live samples wait until its time is over.
    with declare_reliable_subscriber(
        network.client(), "a/**", profile=CONSISTENT, history_timeout_seconds=0.2
    ) as reader:
        by_channel = reader.sample_lost_listener()
        by_callback = reader.sample_lost_listener(told.append)
        session = network.client()
        publisher = session.declare_publisher("a/b")
        connected(publisher)
        first, early, late = (session.new_timestamp() for _ in range(3))
        publisher.put(b"late", timestamp=late)
        assert reader.wait(30)
        assert payloads(reader.take()) == [b"late"]
        publisher.put(b"early", timestamp=early)
        lost = by_channel.recv(10)
        assert (lost.reason, lost.key, lost.change) == (LostReason.CONSUMED, "a/b", 1)
        wait_until(lambda: told == [lost])
        assert reader.sample_lost_status() == lost
        assert reader.sample_lost_status().change == 0
        assert reader.read() == []
        by_callback.undeclare()
        publisher.put(b"early", timestamp=early)  # a repeat is no other sample
        publisher.put(b"first", timestamp=first)
        assert by_channel.recv(10).total == 2
        assert len(told) == 1


def test_a_timestamp_of_the_far_future_is_reported_and_stops_no_reader(
    network: LocalNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    with declare_reliable_subscriber(network.client(), "a/**", profile=DEEP) as reader:
        publisher = writing(network.client(), reader, "a/*")
        publisher.put(b"1", key="a/b")
        foreign = Numbered(network.client(), "a/b")
        connected(foreign.publisher)
        far = build_timestamp(ntp64_from_ns(time.time_ns()) + (3600 << 32), "ab")
        assert far is not None
        for sn in range(2):  # no router gives a delete another timestamp
            foreign.delete(sn, far)
        wait_until(lambda: reader.timestamps_ahead == 2)
        publisher.put(b"2", key="a/b")
        publisher.put(b"x", key="a/c")
        wait_until(lambda: states(reader) == {"a/b": DISPOSED, "a/c": ALIVE})
        assert payloads(reader.take()) == [b"1", b"2", b"", b"", b"x"]
        publisher.put(b"3", key="a/b")
        publisher.put(b"y", key="a/c")
        wait_until(lambda: payloads(reader.read()) == [b"y"])
        assert reader.sample_lost_status().reason is LostReason.CONSUMED
        assert reader.timestamps_ahead == 2
        (said,) = [record.getMessage() for record in caplog.records if "ahead" in record.message]
        assert said.startswith(f"a/b of {foreign.prefix} is 3")
        assert "what is written there before then counts as older" in said
        publisher.close()


def test_a_listener_that_raises_is_counted_and_delivery_goes_on(network: LocalNetwork) -> None:
    def fail(_: object) -> None:
        raise ValueError("a fault of the program's own")

    profile = Profile(depth=1, instances_max=1)
    with declare_reliable_subscriber(network.client(), "a/**", profile=profile) as reader:
        reader.sample_lost_listener(fail)
        publisher = writing(network.client(), reader, "a/*")
        for key in ("a/1", "a/2", "a/1"):
            publisher.put(key.encode(), key=key)
        wait_until(lambda: reader.delivered == 3)
        wait_until(lambda: reader.callback_errors == 1)
        assert reader.sample_lost_status().reason is LostReason.INSTANCES_MAX
        assert states(reader) == {"a/1": ALIVE}
        publisher.close()


def test_keep_all_loses_nothing_of_a_reader_that_takes_slowly(network: LocalNetwork) -> None:
    profile = Profile(
        durability=DurabilityKind.TRANSIENT_LOCAL,
        depth=None,
        samples_max=10,
        destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP,
    )
    with declare_reliable_subscriber(network.client(), "a/**", profile=profile) as reader:
        publisher = writing(network.client(), reader)
        sent = [b"%d" % at for at in range(100)]
        for payload in sent:
            publisher.put(payload)
        taken: list[bytes] = []
        while len(taken) < len(sent):
            assert reader.wait(10)
            held = payloads(reader.take())
            assert len(held) <= 10
            taken += held
        assert taken == sent
        assert reader.sample_lost_status().total == 0
        publisher.close()


def test_a_reader_that_waits_for_room_can_be_closed(network: LocalNetwork) -> None:
    profile = Profile(depth=None, samples_max=1)
    reader = declare_reliable_subscriber(network.client(), "a/**", profile=profile)
    publisher = writing(network.client(), reader)
    for _ in range(3):
        publisher.put(b"x")
    wait_until(lambda: len(reader.read()) == 1)
    reader.close()
    reader.close()
    assert len(reader.take()) == 1, "what is kept can be taken still"
    assert reader.wait(0) is False
    publisher.close()


def test_what_a_killed_publisher_wrote_is_still_there_by_default(
    network: LocalNetwork, tmp_path: Path
) -> None:
    (tmp_path / "publishing.py").write_text(
        "import sys, time\n"
        "from durable_cache import Durability, declare_reliable_publisher, open_session\n"
        "session = open_session({'mode': 'client', 'connect': {'endpoints': [sys.argv[1]]},\n"
        "    'scouting': {'multicast': {'enabled': False}}})\n"
        "publisher = declare_reliable_publisher(session, 'a/*', acknowledgements=1,\n"
        "    level=Durability.MEMORY)\n"
        "receipts = [publisher.put(b'%d' % at, key=f'a/{at}') for at in range(9)]\n"
        "assert all(receipt.wait(10) for receipt in receipts)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", profile=CONSISTENT) as early,
    ):
        wait_until(lambda: early.history_complete)
        with ModuleProcess(
            "publishing", (network.endpoint,), folder=tmp_path, ready="ready"
        ) as process:
            wait_until(lambda: len(early.read()) == 9)
            process.kill()
            wait_until(lambda: set(states(early).values()) == {NO_WRITERS})
        assert len(payloads(early.read())) == 9
        assert cache.status().appended == 9
        with declare_reliable_subscriber(network.client(), "a/**", profile=CONSISTENT) as late:
            wait_until(lambda: len(payloads(late.read())) == 9)
            assert states(late) == states(early)
        with declare_reliable_subscriber(network.client(), "a/**", history=True) as plain:
            assert sorted(plain.recv(10).key for _ in range(9)) == sorted(states(early))
        answers = network.client().get("a/**", consolidation=zenoh.ConsolidationMode.NONE)
        assert len([reply for reply in answers if reply.ok is not None]) == 9


def test_a_persistent_profile_needs_a_cache(network: LocalNetwork) -> None:
    profile = Profile(durability=DurabilityKind.PERSISTENT)
    session = network.client()
    with (
        declare_reliability_cache(network.client(), "a/b"),
        pytest.raises(ConfigError, match="no cache in reach stores all of it"),
    ):
        declare_reliable_subscriber(session, "a/**", profile=profile, history_timeout_seconds=0.2)
    with (
        declare_reliability_cache(network.client(), "**"),
        declare_reliable_subscriber(session, "a/**", profile=profile) as reader,
    ):
        assert reader.profile is profile


@pytest.mark.parametrize(
    "named", [{"handler": print}, {"history": True}, {"history": 3}, {"recovery": False}]
)
def test_a_profile_decides_alone(network: LocalNetwork, named: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="a profile decides"):
        declare_reliable_subscriber(network.client(), "a/**", profile=CONSISTENT, **named)  # type: ignore[call-overload]


def test_a_profile_that_is_none_is_refused(network: LocalNetwork) -> None:
    with pytest.raises(ConfigError, match="'x': write a Profile or one of"):
        declare_reliable_subscriber(network.client(), "a/**", profile="x")
    with (
        declare_reliable_subscriber(network.client(), "a/**", profile=CONSISTENT) as reader,
        pytest.raises(ConfigError, match="nothing is received from it"),
    ):
        reader.recv(0)
