"""Backends are found by name, and every way that can go wrong says what to do."""

from pathlib import Path

import pytest

from durable_cache.errors import BackendNotFound, BackendNotInstalled, ConfigError
from durable_cache.model.selection import Selection
from durable_cache.storage.memory import MemoryBackend, MemoryStorage
from durable_cache.storage.plugins import (
    find_backend,
    installed_backends,
    open_storage,
    parse_options,
)
from durable_cache.testing.distributions import installed, write_distribution
from durable_cache.testing.samples import batch, sample

TYPED = """
from durable_cache.storage.contract import Backend, BackendOptions

class Options(BackendOptions, frozen=True):
    port: int
    token: str = ""

class Typed(Backend):
    name = "typed"
    options_type = Options
    def open(self, storage, options, *, writer=True):
        raise NotImplementedError
    def describe(self, options):
        return "typed"
"""


def distribution(directory: Path, name: str, value: str, source: str, requires: str = "") -> Path:
    module = value.partition(":")[0]
    needs = (requires,) if requires else ()
    return write_distribution(
        directory / name, f"dist-{name}", {name: value}, {module: source}, needs
    )


def test_ours_are_installed() -> None:
    assert {"memory", "sql", "influxdb", "delta"} <= set(installed_backends())
    assert isinstance(find_backend("memory"), MemoryBackend)


def test_memory_opens_by_name() -> None:
    with open_storage("memory", "mine") as storage:
        assert isinstance(storage, MemoryStorage)
        storage.append(batch(sample(1)))
        assert len(storage.read(Selection(), 10).samples) == 1


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(BackendNotFound, match=r"'mongo'.*delta, influxdb, memory, sql") as caught:
        find_backend("mongo")
    assert caught.value.name == "mongo"
    assert "memory" in caught.value.installed


def test_a_missing_driver_of_ours_names_our_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import a_driver_nobody_has\n"
    directory = write_distribution(
        tmp_path / "site", "durable-cache", {"influxdb": "broken_influx:Backend"}, {}
    )
    (directory / "broken_influx.py").write_text(source)
    with installed(directory), pytest.raises(BackendNotInstalled) as caught:
        find_backend("influxdb")
    assert caught.value.extra == "influxdb"
    assert caught.value.missing == "a_driver_nobody_has"
    assert "pip install 'durable-cache[influxdb]'" in str(caught.value)


@pytest.mark.parametrize(
    ("requires", "remedy"),
    [
        ("A.Driver-nobody_has>=2; extra == 'fast'", "pip install 'dist-other[fast]'"),
        ("a-driver-nobody-has>=2", "pip install 'dist-other'"),
        ("something-else; extra == 'fast'", "pip install 'dist-other'"),
        ("", "pip install 'dist-other'"),
    ],
)
def test_a_missing_driver_of_a_third_party_names_its_own_distribution(
    tmp_path: Path, requires: str, remedy: str
) -> None:
    source = "import a_driver_nobody_has.inner\n"
    directory = distribution(tmp_path, "other", "other_backend:Other", source, requires)
    with installed(directory), pytest.raises(BackendNotInstalled) as caught:
        find_backend("other")
    assert caught.value.name == "other"
    assert remedy in str(caught.value)


def test_two_distributions_may_not_claim_one_name(tmp_path: Path) -> None:
    one = write_distribution(tmp_path / "1", "one", {"twin": "module_one:Typed"}, {})
    two = write_distribution(tmp_path / "2", "two", {"twin": "module_two:Typed"}, {})
    with installed(one, two), pytest.raises(ConfigError, match=r"'twin'.*uninstall one") as caught:
        find_backend("twin")
    assert "one (module_one:Typed)" in str(caught.value)
    assert "two (module_two:Typed)" in str(caught.value)


def test_nobody_may_take_a_name_of_ours(tmp_path: Path) -> None:
    thief = write_distribution(tmp_path / "x", "thief", {"memory": "thief:Thief"}, {})
    with installed(thief), pytest.raises(ConfigError, match="'memory'"):
        open_storage("memory", "mine")


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("no_backend:Thing", "class Thing: pass\n"),
        ("no_backend:thing", "thing = 7\n"),
        ("no_backend:make", "def make(): return None\n"),
        ("no_backend", "pass\n"),
        ("no_backend:Absent", "pass\n"),
        ("no_backend:x", "from durable_cache.errors import does_not_exist\n"),
        ("no_backend:Half", f"{TYPED}\nclass Half(Backend):\n    name = 'half'\n"),
    ],
)
def test_something_that_is_no_backend_is_named(tmp_path: Path, value: str, source: str) -> None:
    directory = distribution(tmp_path, "wrong", value, source)
    with installed(directory), pytest.raises(ConfigError, match=r"'wrong'.*dist-wrong"):
        find_backend("wrong")


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({}, "port"),
        ({"port": "many"}, "port"),
        ({"port": 1, "tokn": "x"}, "tokn"),
        ({"port": 1, "token": 5}, "token"),
    ],
)
def test_bad_options_name_the_field(tmp_path: Path, raw: dict[str, object], field: str) -> None:
    with installed(distribution(tmp_path, "typed", "typed_backend:Typed", TYPED)):
        backend = find_backend("typed")
        with pytest.raises(ConfigError, match=field) as caught:
            parse_options(backend, raw)
    assert "its options are: port, token" in str(caught.value)


def test_good_options_are_typed(tmp_path: Path) -> None:
    with installed(distribution(tmp_path, "typed", "typed_backend:Typed", TYPED)):
        options = parse_options(find_backend("typed"), {"port": 7})
    assert repr(options) == "Options(port=7, token='')"


def test_memory_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="its options are: none"):
        open_storage("memory", "mine", {"path": "/tmp"})
