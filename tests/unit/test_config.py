"""Does a configuration mean what it says, and is every mistake named where it stands?"""
# ruff: noqa: E501 - one mistake a line

from __future__ import annotations

import json
from pathlib import Path

import pytest

from durable_cache.errors import ConfigError
from durable_cache.protocol.alignment import MergePolicy, SplitBrainOptions
from durable_cache.service.building import cache_options, effective_limits
from durable_cache.service.config import Settings, read_settings
from durable_cache.service.document import DOCUMENT_BYTES_MAX, read_document
from durable_cache.service.layers import Overrides, load_settings, overrides_from
from durable_cache.service.strict import Mistakes, mistakes_of, read_table
from durable_cache.service.volumes import read_volume
from durable_cache.storage.contract import Durability, Retention

EXAMPLE = """
// as in the documentation
{ mode: "peer", listen: { endpoints: ["tcp/[::]:7447"] },
  plugins: { durable_cache: {
    state_dir: "data",
    volumes: { main: { backend: "sql", url: "sqlite:///data/samples.db" }, quick: { backend: "memory" } },
    storages: {
      fleet: { key_expr: ["fleet/**"], exclude: ["fleet/*/camera/**"], volume: "main",
               retention: { age_seconds_max: 604800, samples_max: 100000 }, acknowledge: "disk",
               alignment: { enabled: true } },
      lab: { key_expr: "lab/*", volume: "quick", acknowledge: "memory", history: 10 } } },
    rest: { http_port: 8000 } } }
"""


def read(text: str, tmp_path: Path, name: str = "cache.json5") -> Settings:
    path = tmp_path / name
    path.write_text(text)
    return load_settings(Overrides(config=str(path)))


def section(inner: str) -> str:
    return f"{{plugins: {{durable_cache: {{{inner}}}}}}}"


def storage(inner: str) -> str:
    return section(f'storages: {{fleet: {{key_expr: "a/**", {inner}}}}}')


def test_the_documented_example_is_understood(tmp_path: Path) -> None:
    settings = read(EXAMPLE, tmp_path)
    fleet, lab = settings.cache.storages["fleet"], settings.cache.storages["lab"]
    assert fleet.key_exprs == ("fleet/**",)
    assert fleet.excluded == ("fleet/*/camera/**",)
    assert fleet.kept == Retention(age_seconds_max=604800, samples_max=100000)
    assert fleet.level is Durability.DISK
    assert fleet.alignment.enabled
    assert lab.kept == Retention(samples_max=10)
    assert lab.level is Durability.MEMORY
    assert settings.cache.domain == "default"
    assert settings.cache.http.address is None


def test_what_is_zenohs_passes_through_untouched(tmp_path: Path) -> None:
    zenoh = read(EXAMPLE, tmp_path).zenoh
    assert dict(zenoh) == {
        "mode": "peer",
        "listen": {"endpoints": ["tcp/[::]:7447"]},
        "plugins": {"rest": {"http_port": 8000}},
    }


def test_yaml_and_json5_mean_the_same(tmp_path: Path) -> None:
    text = """
mode: peer
listen: {endpoints: ["tcp/[::]:7447"]}
plugins:
  rest: {http_port: 8000}
  durable_cache:
    state_dir: data
    volumes:
      main: {backend: sql, url: "sqlite:///data/samples.db"}
      quick: {backend: memory}
    storages:
      fleet:
        key_expr: ["fleet/**"]
        exclude: ["fleet/*/camera/**"]
        volume: main
        retention: {age_seconds_max: 604800, samples_max: 100000}
        acknowledge: disk
        alignment: {enabled: true}
      lab: {key_expr: "lab/*", volume: quick, acknowledge: memory, history: 10}
"""
    assert read(text, tmp_path, "cache.yaml") == read(EXAMPLE, tmp_path)


MISTAKES = [
    (storage("retension: {}"), "storages.fleet.retension: unknown setting; did you mean 'retention'?"),
    (storage("retention: {age_secs_max: 1}"), "fleet.retention.age_secs_max: unknown setting; did you mean 'age_seconds_max'?"),
    (section("stat_dir: 'x', storages: {}"), "plugins.durable_cache.stat_dir: unknown setting; did you mean 'state_dir'?"),
    (storage("zzz: 1"), "storages.fleet.zzz: unknown setting; known: acknowledge, alignment,"),
    (storage("retention: {samples_max: 'many'}"), "fleet.retention.samples_max: expected a whole number or nothing, got text"),
    (storage("retention: {samples_max: 0}"), "fleet.retention.samples_max: expected a whole number >= 1"),
    (storage("retention: {age_seconds_max: -1}"), "fleet.retention.age_seconds_max: expected a number > 0.0"),
    (storage("retention: {age_seconds_max: NaN}"), "fleet.retention.age_seconds_max: expected a number > 0.0"),
    (storage("retention: 5"), "storages.fleet.retention: expected a table {…}, got a number"),
    (storage("acknowledge: 'floppy'"), "storages.fleet.acknowledge: invalid enum value 'floppy'; one of: disk, memory, process"),
    (storage("history: 5, retention: {samples_max: 5}"), "fleet.history: the same as retention.samples_max"),
    (storage("exclude: 'a/**'"), "storages.fleet.exclude: leaves nothing of 'a/**' to store"),
    (section("storages: {fleet: {}}"), "storages.fleet: missing required field key_expr"),
    (section("storages: {fleet: {key_expr: 'a//b'}}"), "storages.fleet.key_expr: 'a//b': "),
    (section("storages: {fleet: {key_expr: []}}"), "storages.fleet.key_expr: name at least one"),
    (section("storages: {fleet: {key_expr: 7}}"), "storages.fleet.key_expr: expected text or a list, got a whole number"),
    (section("storages: {fleet: {key_expr: '@durable/**'}}"), "would store our own messages"),
    (section("storages: {fleet: {key_expr: '@durable/v1/x/consumer/**'}}"), "'@durable/v1/*/consumers/**' may be stored"),
    (section("storages: {'Fleet 1': {key_expr: 'a'}}"), "storages.Fleet 1: a name is 1 to 64 of a-z"),
    (section("storages: {lock: {key_expr: 'a'}}"), "storages.lock: the name is taken"),
    (section("storages: {}"), "plugins.durable_cache.storages: name at least one"),
    (section("storages: []"), "plugins.durable_cache.storages: expected a table {…}, got a list"),
    (section(""), "plugins.durable_cache.storages: name at least one"),
    (section("storages: {a: {key_expr: 'x'}, a: {key_expr: 'y'}}"), 'Duplicate key "a" found'),
    (storage("volume: 'lake'"), "fleet.volume: no volume is called 'lake'; there are: main"),
    (
        section("volumes: {a: {backend: 'sql'}, b: {backend: 'sql'}}, storages: {x: {key_expr: 'a'}}"),
        "storages.x.volume: missing; name one of: a, b",
    ),
    (
        section("volumes: {a: {backend: 'memory'}}, storages: {x: {key_expr: 'a'}}"),
        "storages.x.acknowledge: level 'disk' cannot be kept in memory",
    ),
    (section("volumes: {a: {url: 'x'}}, storages: {x: {key_expr: 'a'}}"), "volumes.a.backend: name a backend"),
    (section("http: {listen: 'here'}, storages: {x: {key_expr: 'a'}}"), "http.listen: expected host:port"),
    (section("http: {listen: 'h:99999'}, storages: {x: {key_expr: 'a'}}"), "http.listen: expected host:port"),
    (section("domain: 'a/b', storages: {x: {key_expr: 'a'}}"), "durable_cache.domain: expected 1 to 64"),
    (section("state_dir: '', storages: {x: {key_expr: 'a'}}"), "durable_cache.state_dir: expected the path"),
    ("{plugins: {durable_cahe: {}}}", "plugins.durable_cache: missing; did you misspell it as 'durable_cahe'?"),
    ("{mode: 'peer'}", "plugins.durable_cache: missing; name at least one storage there"),
    ("{mode: 'peer'", "line 1"),
    ("[1]", "the whole file must be one table"),
    ("", "Empty"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_is_named_where_it_stands(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, tmp_path)
    assert said in str(caught.value)
    assert "cache.json5" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "line 1"),
        ("plugins:\n  durable_cache: {}\nplugins: {}\n", 'line 3: Duplicate key "plugins" found'),
        ("- 1", "the whole file must be one table"),
        ("? [1, 2]\n: 3\n", "line 1: found unhashable key"),
        ("1: 2\n", "the whole file must be one table"),
        ("mode: !!python/object/apply:os.system ['true']\n", "line 1: could not determine"),
    ],
)
def test_a_mistake_in_yaml_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache\.yaml: ") as caught:
        read(text, tmp_path, "cache.yaml")
    assert said in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        read_document(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=r"name a configuration \.json5"):
        read_document(tmp_path / "cache.toml")
    (tmp_path / "binary.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="no UTF-8 at byte 3"):
        read_document(tmp_path / "binary.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (DOCUMENT_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="may not exceed"):
        read_document(tmp_path / "big.yaml")
    (tmp_path / "deep.json5").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_document(tmp_path / "deep.json5")


def test_without_a_file_everything_is_stored_durably() -> None:
    settings = load_settings(Overrides())
    (name,) = settings.cache.storages
    chosen = settings.cache.storages[name]
    assert chosen.key_exprs == ("**",)
    assert chosen.level is Durability.DISK
    assert settings.cache.state_dir == "durable-cache-data"
    assert settings.cache.volumes["main"].options == {
        "url": "sqlite:///durable-cache-data/samples.db"
    }
    assert settings.zenoh["listen"] == {"endpoints": ["tcp/[::]:7447"]}


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.json5"
    path.write_text(EXAMPLE)
    environment = overrides_from(
        {
            "DURABLE_CACHE_CONFIG": str(path),
            "DURABLE_CACHE_STATE_DIR": "from-environment",
            "DURABLE_CACHE_LISTEN": "tcp/127.0.0.1:1, tcp/127.0.0.1:2",
            "DURABLE_CACHE_DOMAIN": "lab",
            "HOME": "/",
        }
    )
    settings = load_settings(Overrides(state_dir="from-flag").over(environment))
    assert settings.cache.state_dir == "from-flag"
    assert settings.cache.domain == "lab"
    assert read_table(settings.zenoh["listen"], "listen")["endpoints"] == [
        "tcp/127.0.0.1:1",
        "tcp/127.0.0.1:2",
    ]
    assert set(settings.cache.storages) == {"fleet", "lab"}


def test_a_misspelt_variable_is_no_silent_default() -> None:
    with pytest.raises(ConfigError, match="did you mean DURABLE_CACHE_STATE_DIR"):
        overrides_from({"DURABLE_CACHE_STATEDIR": "x"})


@pytest.mark.parametrize("name", ["SQL_PASSWORD", "CACHE_DIR", "GOLDEN", "SPARK_JARS"])
def test_variables_of_other_rooms_are_left_alone(name: str) -> None:
    assert overrides_from({f"DURABLE_CACHE_{name}": "x"}) == Overrides()


def test_every_limit_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    settings = load_settings(Overrides())
    for name, value in effective_limits(cache_options(settings, "cache")).items():
        assert f"| `{name}` | {value} |" in page, f"document {name} = {value}"


def test_a_secret_that_is_not_there_is_one_mistake() -> None:
    volumes = {"m": {"backend": "sql", "url": {"env": "DURABLE_CACHE_NOT_THERE"}}}
    storages = {"fleet": {"key_expr": "a"}}
    document = {"plugins": {"durable_cache": {"volumes": volumes, "storages": storages}}}
    with pytest.raises(ConfigError) as wrong:
        read_volume("m", read_settings(document).cache.volumes["m"])
    assert mistakes_of(wrong.value) == (
        "plugins.durable_cache.volumes.m.url: the environment variable DURABLE_CACHE_NOT_THERE is "
        "not set",
    )


def test_every_limit_that_is_wrong_is_named_by_its_own() -> None:
    limits = {
        "gaps_open_max": "x",
        "pool_threads": None,
        "tail_bytes_max": "1 zb",
        "retention_seconds": True,
        "queue_bytes_max": "1 MiB",
    }
    storages = {"fleet": {"key_expr": "a", "limits": limits}}
    with pytest.raises(Mistakes) as wrong:
        read_settings({"plugins": {"durable_cache": {"storages": storages}}})
    where = "plugins.durable_cache.storages.fleet.limits"
    assert wrong.value.mistakes == (
        f"{where}.gaps_open_max: expected a number, got text",
        f"{where}.pool_threads: expected a number, got nothing",
        f'{where}.tail_bytes_max: expected a number, or "64 KiB", "10 MiB" or "2 GB", got \'1 zb\'',
        f"{where}.retention_seconds: expected a number, got true or false",
    )


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"queries_maxx": 1}, "limits.queries_maxx: unknown setting; did you mean 'queries_max'?"),
        ({"queries_max": 1.5}, "limits.queries_max: expected a whole number, got 1.5"),
        ({"queries_max": 0}, "limits.queries_max: expected a number above 0, got 0"),
    ],
)
def test_a_wrong_limit_is_named(limits: dict[str, object], said: str) -> None:
    storages = {"fleet": {"key_expr": "a", "limits": limits}}
    settings = read_settings({"plugins": {"durable_cache": {"storages": storages}}})
    with pytest.raises(ConfigError) as caught:
        cache_options(settings, "fleet")
    assert said in str(caught.value)


def test_limits_and_recovery_reach_the_cache() -> None:
    fleet = {
        "key_expr": "a",
        "limits": {"queries_max": 2, "sources_max": 7, "spool_bytes_max": 1000},
        "recovery": {"gap_timeout_seconds": 3},
        "history": 9,
        "allowed_origin": "session_local",
        "acknowledge": "process",
    }
    settings = read_settings({"plugins": {"durable_cache": {"storages": {"fleet": fleet}}}})
    options = cache_options(settings, "fleet")
    assert (options.queries_max, options.engine.sources_max) == (2, 7)
    assert options.journal.spool_bytes_max == 1000
    assert options.engine.gap_timeout_seconds == 3
    assert options.retention == Retention(samples_max=9)
    assert options.acknowledge is Durability.PROCESS
    assert options.name == "fleet"


def test_key_expressions_belong_into_the_file_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "cache.json5"
    path.write_text(EXAMPLE)
    with pytest.raises(ConfigError, match="--key-expr: the file names the storages"):
        load_settings(Overrides(config=str(path), key_expr=["a/**"]))


SECRETS = """
{ transport: { auth: { usrpwd: { user: "u", password: "canary-1" } } },
  connect: { endpoints: ["tls/host:7447#connect_private_key_base64=canary-5"] },
  plugins: { rest: { api_key: "canary-2" }, durable_cache: {
    volumes: { pg: { backend: "sql", url: "postgresql://user:canary-3@host/db?password=canary-4" },
               other: { backend: "memory", token: { file: "/run/secrets/t" }, password: "canary-6" } },
    storages: { x: { key_expr: "a", volume: "pg" } } } } }
"""


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    settings = read(SECRETS, tmp_path)
    shown = json.dumps(settings.effective()) + repr(settings) + repr(settings.cache.volumes)
    assert "canary" not in shown
    assert "postgresql://user:***@host/db?password=***" in shown
    assert "/run/secrets/t" in shown


def volume_settings(inner: str, tmp_path: Path) -> Settings:
    text = section(
        f"volumes: {{v: {{{inner}}}}}, storages: {{x: {{key_expr: 'a', acknowledge: 'memory'}}}}"
    )
    return read(text, tmp_path)


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("backend: 'sqll'", "volumes.v.backend: no backend is called 'sqll'; installed: "),
        ("backend: 'memory', size: 5", "volumes.v.size: unknown setting"),
        ("backend: 'memory', size: {env: 'X'}", "volumes.v.size: unknown setting"),
    ],
)
def test_a_mistake_in_a_volume_is_named(inner: str, said: str, tmp_path: Path) -> None:
    settings = volume_settings(inner, tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_volume("v", settings.cache.volumes["v"])
    assert said in str(caught.value)


def test_a_document_is_not_changed_by_reading_it() -> None:
    document: dict[str, object] = {
        "plugins": {"durable_cache": {"storages": {"a": {"key_expr": "x"}}}}
    }
    before = json.dumps(document)
    read_settings(document)
    assert json.dumps(document) == before


def test_a_cleanup_of_what_is_aligned_names_the_caches_it_waits_for(tmp_path: Path) -> None:
    alone = read(storage('service_cleanup_delay_seconds: "90s"'), tmp_path)
    assert cache_options(alone, "fleet").service_cleanup_delay_seconds == 90
    assert cache_options(read(storage(""), tmp_path), "fleet").service_cleanup_delay_seconds is None
    peers = '["0123456789abcdef", "fedcba9876543210"]'
    both = f"service_cleanup_delay_seconds: 0, alignment: {{enabled: true, peers: {peers}}}"
    assert cache_options(read(storage(both), tmp_path), "fleet").align_peers == (
        "0123456789abcdef",
        "fedcba9876543210",
    )
    for wrong, said in (
        ("service_cleanup_delay_seconds: 5, alignment: {enabled: true}", r"under alignment\.peers"),
        ('alignment: {enabled: true, peers: ["hall-3"]}', "'hall-3' is no cache's id"),
        ("service_cleanup_delay_seconds: -1", "service_cleanup_delay_seconds"),
        ("service_cleanup_delay: 5", "did you mean.*service_cleanup_delay_seconds"),
    ):
        with pytest.raises(ConfigError, match=rf"storages\.fleet.*{said}"):
            cache_options(read(storage(wrong), tmp_path), "fleet")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ('{policy: "catchup"}, alignment: {enabled: true}', r"split_brain\.policy.*catch-up"),
        ('{policy: "delete"}', "works on top of alignment"),
        ('{policy: "ignore"}, alignment: {enabled: true, pull: false}', "works on top of"),
        ("{remove_history: true}, alignment: {enabled: true}", "'merge' removes nothing"),
        ("{master_priority: -1}", r"split_brain\.master_priority"),
        ("{master: true}", r"split_brain\.master: unknown setting"),
    ],
)
def test_a_merge_policy_that_cannot_be_kept(settings: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        cache_options(read(storage(f"split_brain: {settings}"), tmp_path), "fleet")


def test_a_merge_policy(tmp_path: Path) -> None:
    chosen = '{policy: "catch-up", master_priority: 3, remove_history: true}'
    text = storage(f"split_brain: {chosen}, alignment: {{enabled: true}}")
    options = cache_options(read(text, tmp_path), "fleet")
    assert options.split_brain == SplitBrainOptions(MergePolicy.CATCH_UP, 3, True)
    assert cache_options(read(storage("history: 1"), tmp_path), "fleet").split_brain == (
        SplitBrainOptions()
    )
