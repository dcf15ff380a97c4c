"""Does a configuration's section of pipes mean what it says, and is each mistake named?"""

from __future__ import annotations

from typing import Any

import pytest

from durable_cache.errors import ConfigError
from durable_cache.model.delivery import DeliveryMode
from durable_cache.service.building import check_all
from durable_cache.service.config import Settings, read_settings
from durable_cache.service.differences import difference_of
from durable_cache.service.pipe_settings import zenoh_of
from durable_cache.service.piping import pipe_limit_names, pipe_options
from durable_cache.service.schema import configuration_schema

FLEET = {"key_expr": "fleet/**"}


def settings(pipes: object, **ours: Any) -> Settings:
    section = {"storages": {"fleet": FLEET}, "pipes": pipes, **ours}
    listen = {"endpoints": ["tcp/[::]:7447"]}
    return read_settings({"listen": listen, "plugins": {"durable_cache": section}})


def test_a_pipe_between_the_service_and_an_endpoint() -> None:
    read = settings({"to-hub": {**FLEET, "to": "tcp/hub:7447"}}, domain="site")
    pipe = read.cache.pipes["to-hub"]
    assert pipe.is_between == "here -> tcp/hub:7447"
    assert zenoh_of(pipe.target) == {
        "connect": {"endpoints": ["tcp/hub:7447"]},
        "mode": "client",
        "scouting": {"multicast": {"enabled": False}},
    }
    options = pipe_options(read, "to-hub")
    assert (options.name, options.source_domain, options.target_domain) == (
        *("to-hub", "site", "site"),
    )


def test_everything_that_can_be_said_of_a_pipe() -> None:
    said = {
        **FLEET,
        "from": {"mode": "peer", "connect": {"endpoints": ["tls/site:7447"]}},
        "to": ["tcp/hub:7447", "tcp/hub2:7447"],
        "from_domain": "site",
        "to_domain": "hub",
        "acknowledgements": 2,
        "level": "process",
        "processed_by": "billing",
        "mode": "at-least-once",
        "limits": {"retry_seconds": "2s", "frame_bytes_max": "64 KiB", "caches_max": 9},
    }
    read = settings({"over": said})
    pipe, options = read.cache.pipes["over"], pipe_options(read, "over")
    assert pipe.is_between == "tls/site:7447 -> tcp/hub:7447, tcp/hub2:7447"
    assert zenoh_of(pipe.source)["mode"] == "peer"
    assert (options.source_domain, options.target_domain) == ("site", "hub")
    assert (options.acknowledgements, str(options.level)) == (2, "process")
    assert (options.processed_by, options.delivery) == ("billing", DeliveryMode.AT_LEAST_ONCE)
    assert (options.retry_seconds, options.frame_bytes_max, options.caches_max) == (2, 65536, 9)
    check_all(read)


def test_secrets_of_a_network_are_not_shown() -> None:
    to = {"connect": {"endpoints": ["tcp/hub:7447"]}, "transport": {"auth": {"usrpwd": {}}}}
    to["transport"]["auth"]["usrpwd"] = {"user": "site", "password": "brandy"}  # type: ignore[index]
    read = settings({"to-hub": {**FLEET, "to": to}})
    assert "brandy" not in str(read.effective())
    assert "'to': {" in str(read.effective())


@pytest.mark.parametrize(
    ("pipes", "told"),
    [
        ({"up": FLEET}, "pipes.up: names no other network: a pipe onto itself"),
        ({"Up": {**FLEET, "to": "tcp/hub:7447"}}, "pipes.Up: a name is 1 to 64"),
        ({"up": {"to": "tcp/hub:7447"}}, "pipes.up: missing required field key_expr"),
        ({"up": {"key_expr": "a//b", "to": "tcp/hub:7447"}}, "pipes.up.key_expr: "),
        ({"up": {**FLEET, "too": "tcp/hub:7447"}}, "pipes.up.too: unknown setting; did you mean"),
        ({"up": {**FLEET, "to": 7}}, "pipes.up.to: expected"),
        ({"up": {**FLEET, "to": "tcp/hub:7447", "mode": "twice"}}, "pipes.up.mode: "),
        ({"up": {**FLEET, "to": {"plugins": {}}}}, "pipes.up.to.plugins: no plugins"),
        ({"up": {**FLEET, "to": "here"}}, "pipes.up.to: "),
        ({"up": {**FLEET, "to": {"mode": "boss"}}}, "pipes.up.to: "),
        ({"up": {**FLEET, "to": "tcp/h:1", "level": "tape"}}, "pipes.up.level: "),
        (
            {"up": {**FLEET, "to": "tcp/h:1", "processed_by": "a b"}},
            "pipes.up: processed_by: expected a name",
        ),
        (
            {"up": {**FLEET, "to": "tcp/h:1", "limits": {"retry": 1}}},
            "pipes.up.limits.retry: unknown setting; did you mean 'retry_seconds'",
        ),
        (
            {"up": {**FLEET, "to": "tcp/h:1", "limits": {"frame_samples_max": 20_000}}},
            "pipes.up.limits.frame_samples_max: expected at most",
        ),
        ({"up": {**FLEET, "to": "tcp/h:1", "limits": {"frames_max": 1.5}}}, "limits.frames_max"),
        (
            {"up": {**FLEET, "from": "tcp/hub:7447", "to": ["tcp/h:1", "tcp/HUB:7447?rel=1"]}},
            "pipes.up: both ends are in one network, that of tcp/hub:7447: a pipe onto itself",
        ),
        ({"up": {**FLEET, "to": "tcp/localhost:7447#x=y"}}, "pipes.up: both ends are in one netw"),
        ({"up": {**FLEET, "from": "tcp/[::1]:7447"}}, "pipes.up: both ends are in one network"),
        ([], "pipes: expected a table"),
        ({f"p{at}": {**FLEET, "to": "tcp/h:1"} for at in range(65)}, "one service runs 64"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_remedy(pipes: object, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_all(settings(pipes))
    assert told in str(refused.value)


def test_networks_of_other_ports_and_protocols_are_others() -> None:
    ends = {"to": "tcp/localhost:7448", "from": "udp/localhost:7447"}
    check_all(settings({f"p-{end}": {**FLEET, end: place} for end, place in ends.items()}))


def test_a_pipe_is_changed_by_a_restart() -> None:
    one = settings({"up": {**FLEET, "to": "tcp/hub:7447"}})
    with pytest.raises(ConfigError, match="pipes: can only be changed by a restart"):
        difference_of(one, settings({}))


def test_the_schema_describes_a_pipe() -> None:
    schema = configuration_schema()
    told = schema["$defs"]["PipeSettings"]["properties"]
    assert {"from", "to", "key_expr", "limits"} <= set(told)
    assert "Endpoints of the network that samples come from" in told["from"]["description"]
    assert set(told["limits"]["properties"]) == set(pipe_limit_names())
    ours = schema["properties"]["plugins"]["properties"]["durable_cache"]["properties"]
    assert ours["pipes"]["additionalProperties"] == {"$ref": "#/$defs/PipeSettings"}
