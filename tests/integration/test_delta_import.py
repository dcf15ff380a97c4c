"""Does a PostgreSQL or InfluxDB server's history get into a Delta storage, bit for bit, once?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("deltalake")

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip, SourceId
from durable_cache.service.cli import main
from durable_cache.spark.importing import import_history
from durable_cache.storage.plugins import open_storage
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import HOSTILE_KEYS, SOURCE, START_NS, filled, sample
from tests.servers.delta import opened, write
from tests.servers.influxdb import influx_server
from tests.servers.postgres import options_for

pytestmark = pytest.mark.delta
DAY_NS = 86_400 * 10**9
EVERY_KEY = KeyExpression("**")
Held = tuple[str, str, Mapping[str, object]]


def postgres(tmp_path: Path) -> Held:
    return "sql", "fleet", {"url": options_for(tmp_path).url}


def influxdb(tmp_path: Path) -> Held:
    name = "fleet-" + blake2b(str(tmp_path).encode(), digest_size=8).hexdigest()
    return "influxdb", name, msgspec.structs.asdict(influx_server().options())


SERVERS = [
    pytest.param(postgres, marks=pytest.mark.postgres),
    pytest.param(influxdb, marks=pytest.mark.influxdb),
]


def history() -> list[Sample]:
    """Three days of two sources: every field, hostile keys, deletes, numbers that begin anew."""
    older = SourceId("10", 4294967295)
    made = [filled(sn) for sn in range(1000, 1003)]
    made += [sample(sn, key) for sn, key in enumerate(HOSTILE_KEYS) if EVERY_KEY.matches(key)]
    for day in range(3):
        made += [
            msgspec.structs.replace(
                sample(
                    sn, "fleet/r1/pose", older, epoch=7 + day, ntp64=(1 << 63) + day * 10**6 + sn
                ),
                payload=bytes(range(256)) * sn,
                attachment=b"" if sn % 2 else None,
                encoding="application/protobuf;fleet.Pose",
                kind=Kind.DELETE if sn == 9 else Kind.PUT,
                received_ns=START_NS + day * DAY_NS + sn,
            )
            for sn in range(10)
        ]
    return sorted(made, key=lambda one: one.order)


@pytest.mark.parametrize("server", SERVERS)
def test_history_of_a_server_arrives_bit_for_bit_and_once(
    server: Callable[[Path], Held], tmp_path: Path
) -> None:
    source = server(tmp_path)
    with open_storage(*source) as held:
        held.append(SampleBatch(history()), [Skip(SOURCE, 1, 5000, 5002)])
        expected = read_all(held)
    assert expected == history()
    lake = tmp_path / "lake"
    write(lake, expected[5:9])  # what the running cache has taken already
    first = import_history(source, lake, "fleet")
    assert (first.new, first.missing, first.conflicts) == (len(expected) - 4, 0, 0)
    assert first.refused == ()
    again = import_history(source, lake, "fleet")
    assert (again.new, again.samples, again.missing) == (0, 0, 0)
    with opened(lake) as storage:
        assert read_all(storage) == expected
        assert list(storage.skips()) == [Skip(SOURCE, 1, 5000, 5002)]
        assert len({file.day for file in storage.files()}) == 3


@pytest.mark.parametrize("server", SERVERS)
def test_an_import_that_was_cut_off_goes_on(
    server: Callable[[Path], Held], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = server(tmp_path)
    made = [sample(sn, "fleet/r1/pose") for sn in range(60)]
    with open_storage(*source) as held:
        held.append(SampleBatch(made))
    monkeypatch.setattr("durable_cache.storage.transfer.copy_history.__defaults__", (20,))

    def cut(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_history(source, tmp_path / "lake", "fleet", progress=cut)
    with opened(tmp_path / "lake") as storage:
        assert read_all(storage) == made[:20]
    pages: list[int] = []
    done = import_history(source, tmp_path / "lake", "fleet", progress=pages.append)
    assert (done.new, done.missing, sum(pages)) == (40, 0, 40)
    with opened(tmp_path / "lake") as storage:
        assert read_all(storage) == made


@pytest.mark.postgres
def test_a_part_of_a_history_can_be_imported(tmp_path: Path) -> None:
    source = postgres(tmp_path)
    with open_storage(*source) as held:
        held.append(SampleBatch(history()))
    import_history(source, tmp_path / "lake", "fleet", key_expr="fleet/*/pose")
    chosen = KeyExpression("fleet/*/pose")
    with opened(tmp_path / "lake") as storage:
        assert read_all(storage) == [one for one in history() if chosen.matches(one.key)]
    with pytest.raises(ConfigError):
        import_history(source, tmp_path / "lake", "fleet", key_expr="fleet/**/")


@pytest.mark.postgres
def test_the_verb_imports_and_says_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend, name, options = postgres(tmp_path)
    with open_storage(backend, name, options) as held:
        held.append(SampleBatch(history()))
    asked = ["spark", "import", "--from", backend, "--storage", name]
    asked += ["--option", f"url={options['url']}", "--to", str(tmp_path / "lake")]
    assert main(asked) == 0
    assert f"{len(history())} new of {len(history())} read, 0 conflicts" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    gone = {"url": "postgresql+psycopg://cache:secret@127.0.0.1:1/cache"}
    with pytest.raises(DurableCacheError) as caught:
        import_history(("sql", "fleet", gone), tmp_path / "lake", "fleet")
    assert "127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "lake").exists()
