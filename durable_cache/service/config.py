"""What a cache service is told to do: one file in zenohd's own shape, checked to the last name.

Everything outside ``plugins.durable_cache`` is Zenoh's and goes through untouched. Nothing here
opens a storage, a session or a socket.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import DOMAIN_WORDS, is_domain, wrong_at
from durable_cache.model.key_expression import KeyExpression, parse_short
from durable_cache.service.addresses import split_address
from durable_cache.service.kept import FILE_NAME as CHANGES_FILE
from durable_cache.service.kept import KeptChanges
from durable_cache.service.masking import mask
from durable_cache.service.pipe_settings import PipeSettings, read_pipes
from durable_cache.service.sections import (
    SECTION,
    HttpSettings,
    Positive,
    RestSettings,
    Seconds,
    Section,
    check_name,
)
from durable_cache.service.strict import (
    Findings,
    check_names,
    read_model,
    read_table,
    readable_model,
)
from durable_cache.storage.contract import Durability, Retention

STORAGES_MAX = 256
STATE_DIR_DEFAULT = "durable-cache-data"
_TAKEN = frozenset({"lock"})
"""Files of the service itself in `state_dir`, where each storage has a directory."""
_OURS = KeyExpression("@durable/**")
_POSITIONS = KeyExpression("@durable/v1/*/consumers/**")
BACKENDS = {
    **{name: name for name in ("memory", "sql", "influxdb", "delta")},
    "sqlite": "sql",
    "postgres": "sql",
    "postgresql": "sql",
    "influxdb2": "influxdb",
}
"""What people call our backends, zenohd's names among them."""
_POSTGRES = ("postgresql:", "postgres:", "postgresql+")
_SCHEMES = {"sqlite": ("sqlite:",), "postgres": _POSTGRES, "postgresql": _POSTGRES}
_INSTEAD = {
    "rest": f"its section is not read here; name an address under {SECTION}.rest.listen, or with "
    "--rest-http-port",
    "storage_manager": f"its section is not read here; name its storages under {SECTION}.storages, "
    f"its volumes under {SECTION}.volumes",
}


class RetentionSettings(Section, frozen=True):
    """How much a storage keeps; what is left out is not limited."""

    age_seconds_max: Seconds | None = None
    """Counted from the moment the first cache received a sample."""
    samples_max: Positive | None = None
    """Per stream: key, source and epoch."""
    bytes_max: Positive | None = None
    """Payload and attachment bytes of the whole storage."""


class RecoverySettings(Section, frozen=True):
    """How a cache looks for samples that it missed; what is left out keeps its default."""

    gap_timeout_seconds: Seconds | None = None
    """How long a gap is asked for before it is given up, recorded and reported."""
    recovery_delay_seconds: Seconds | None = None
    """How long a gap may be mere reordering."""
    fetch_timeout_seconds: Seconds | None = None
    """How long one question to the other caches and the publisher may take."""
    fetch_retry_seconds_max: Seconds | None = None
    """The longest pause between two questions for one gap."""


class AlignmentSettings(Section, frozen=True):
    """Whether and how the caches of one domain bring each other up to date; what is left out
    keeps its default.
    """

    enabled: bool = False
    pull: bool = True
    """False only finds out what is missing; other caches may still pull from this one."""
    secret: str | dict[str, str] = ""
    """Seeds every hash, so that no publisher can aim a collision; the same in a domain."""
    slot_seconds: Positive | None = None
    """How finely time is cut; the same in a domain."""
    settle_seconds: Seconds | None = None
    """How long after its end a slot is compared; longer than live recovery takes."""
    block: Positive | None = None
    """Content is compared in blocks of so many samples; the same in a domain."""
    rate_bytes_per_second: Positive | None = None
    """What may be pulled from other caches; live samples go first."""
    peers: list[str] = msgspec.field(default_factory=list)
    """Ids of the caches that must have seen a disposal before its instance is cleaned up."""


class SplitBrainSettings(Section, frozen=True):
    """What becomes of instances when two sides of a network meet again that both went on."""

    policy: Literal["ignore", "merge", "delete", "replace", "catch-up"] = "merge"
    """OpenSplice's merge policies; the union unless another is chosen. Needs alignment."""
    master_priority: Annotated[int, msgspec.Meta(ge=0, le=999_999_999)] = 0
    """The cache in reach with the greatest decides; of equal ones, the greatest cache_id."""
    remove_history: bool = False
    """Purge what the policy overruled, acknowledged samples too; False keeps them all."""


class StorageSettings(Section, frozen=True):
    """What one storage keeps, where, for how long, and what its acknowledgement promises."""

    key_expr: str | list[str]
    exclude: str | list[str] = msgspec.field(default_factory=list)
    volume: str = ""
    """The volume's name; may be left out where there is only one."""
    retention: RetentionSettings = RetentionSettings()
    service_cleanup_delay_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """How long after it was disposed and unregistered an instance is purged; left out: never."""
    history: Positive | None = None
    """Another name for ``retention.samples_max``, the specification's."""
    acknowledge: Literal["memory", "process", "disk"] = "disk"
    """What an acknowledged sample survives: nothing, SIGKILL, a power cut."""
    allowed_origin: Literal["any", "session_local"] = "any"
    unnumbered: Literal["store", "warn", "ignore"] = "warn"
    """What becomes of samples without a number, as ordinary publications are."""
    strip_prefix: str | None = None
    """zenohd's; keys are stored whole here, and what is asked and answered is the same."""
    source: str = ""
    """``<zid>`` or ``<zid>:<eid>``: the one publisher whose samples are stored and answered."""
    resources_limit: Positive | None = None
    """How many streams the cache keeps; further ones are refused, counted and reported."""
    recovery: RecoverySettings = RecoverySettings()
    alignment: AlignmentSettings = AlignmentSettings()
    split_brain: SplitBrainSettings = SplitBrainSettings()
    limits: dict[str, int | float] = msgspec.field(default_factory=dict)
    """Bounds of queues and windows, by the names in docs/configuration.md."""

    @property
    def key_exprs(self) -> tuple[str, ...]:
        """The key expressions stored, one or more."""
        return _texts(self.key_expr)

    @property
    def excluded(self) -> tuple[str, ...]:
        """The key expressions left out."""
        return _texts(self.exclude)

    @property
    def level(self) -> Durability:
        """What an acknowledgement promises."""
        return Durability[self.acknowledge.upper()]

    @property
    def kept(self) -> Retention:
        """The retention in the contract's words."""
        return Retention(
            self.retention.age_seconds_max,
            self.retention.samples_max or self.history,
            self.retention.bytes_max,
        )


class VolumeSettings(Section, frozen=True, repr_omit_defaults=True):
    """A backend with its own options, secrets still unresolved; its repr shows no secret."""

    backend: str
    options: dict[str, object]

    def __repr__(self) -> str:
        return f"VolumeSettings(backend={self.backend!r}, options={mask(self.options)!r})"


class ServiceSettings(Section, frozen=True):
    """Everything under ``plugins.durable_cache``."""

    state_dir: str
    domain: str
    http: HttpSettings
    rest: RestSettings
    volumes: dict[str, VolumeSettings]
    storages: dict[str, StorageSettings]
    pipes: dict[str, PipeSettings] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """One service's whole configuration."""

    cache: ServiceSettings
    zenoh: Mapping[str, object] = field(repr=False)
    """Zenoh's own configuration by top-level name, as written by the user."""
    kept: KeptChanges = KeptChanges()
    """What `cache` holds that was changed while the service ran."""

    def notes(self) -> list[str]:
        """Return what the file says that has no effect here, and what to do instead."""
        others = read_table(self.zenoh.get("plugins", {}), "plugins")
        default = "plugins of zenohd are not loaded here; run a zenohd with it beside this service"
        found = [f"plugins.{name}: {_INSTEAD.get(name, default)}" for name in others]
        if self.kept.names:
            path = Path(self.cache.state_dir) / CHANGES_FILE
            changed = ", ".join(self.kept.names)
            found.append(f"{path}: changes storages of the configuration: {changed}")
        return found + [
            f"{SECTION}.storages.{name}.strip_prefix: keys are stored whole; leave it out"
            for name, storage in self.cache.storages.items()
            if storage.strip_prefix is not None
        ]

    def effective(
        self, limits: Mapping[str, Mapping[str, object]] | None = None
    ) -> dict[str, object]:
        """Return every setting as it will be used, secrets masked, in the file's own shape.

        `limits` are those in effect per storage; without them the ones written are shown.
        """
        zenoh = {name: mask(value, name) for name, value in self.zenoh.items()}
        cache = msgspec.to_builtins(self.cache)
        cache["volumes"] = {
            name: {"backend": volume.backend, **_masked(volume.options)}
            for name, volume in self.cache.volumes.items()
        }
        for storage in cache["storages"].values():
            storage["alignment"] = mask(storage["alignment"])
        cache["pipes"] = mask(cache["pipes"])
        for name, effective in (limits or {}).items():
            cache["storages"][name]["limits"] = dict(effective)
        plugins = read_table(zenoh.pop("plugins", {}), "plugins")
        return {**zenoh, "plugins": {**plugins, "durable_cache": cache}}


def read_settings(document: Mapping[str, object]) -> Settings:
    """Check a whole configuration and return it as frozen values.

    Raises `ConfigError`, never to be retried as is, that says where the mistake stands.
    """
    findings = Findings()
    settings = readable_settings(document, findings)
    findings.end()
    return settings


def readable_settings(document: Mapping[str, object], findings: Findings) -> Settings:
    """Return what is right of a configuration and note each mistake of the rest."""
    plugins: Mapping[str, object] = {}
    ours: Mapping[str, object] = {}
    is_ours = False
    with findings.noting():
        plugins = read_table(document.get("plugins", {}), "plugins")
        if "durable_cache" not in plugins:
            raise ConfigError(f"{SECTION}: missing; {_what_is_meant(plugins)}")
        ours = read_table(plugins["durable_cache"], SECTION)
        is_ours = True
    others = {name: value for name, value in plugins.items() if name != "durable_cache"}
    zenoh = {name: value for name, value in document.items() if name != "plugins"}
    if others:
        zenoh["plugins"] = others
    for name, value in zenoh.items():
        with findings.noting():
            _check_json(value, name)
    # Where the section is missing, what it lacks is no mistake of its own.
    return Settings(_service(ours, findings if is_ours else Findings()), zenoh)


def _what_is_meant(plugins: Mapping[str, object]) -> str:
    """Say what to do about a file without our section."""
    near = difflib.get_close_matches("durable_cache", plugins, n=1)
    if near:
        return f"did you misspell it as {near[0]!r}?"
    if "storage_manager" in plugins:
        return "durable-cache check-config --from-zenohd FILE writes it from zenohd's storages"
    return "name at least one storage there, or what to store with --key-expr"


def with_storage(settings: Settings, name: str, raw: Mapping[str, object] | None) -> Settings:
    """Return the settings with a storage put, or removed where `raw` is None; ConfigError as of
    `read_settings`.
    """
    where = f"{SECTION}.storages"
    storages = dict(settings.cache.storages)
    volumes: _Volumes = dict(settings.cache.volumes)
    if raw is not None:
        findings = Findings()
        storages |= _storage(name, raw, volumes, findings)
        findings.end()
    else:
        _check_is_there(settings, name)
        del storages[name]
    if not storages:
        raise ConfigError(f"{where}.{name}: the last storage cannot be removed; put another first")
    if len(storages) > STORAGES_MAX:
        raise ConfigError(f"{where}: one service takes {STORAGES_MAX} storages; remove one first")
    cache = msgspec.structs.replace(settings.cache, storages=storages, volumes=_good(volumes))
    return replace(settings, cache=cache, kept=settings.kept.with_storage(name, raw))


def with_retention(settings: Settings, name: str, raw: Mapping[str, object]) -> Settings:
    """Return the settings with another retention of a storage; ConfigError as `read_settings`."""
    _check_is_there(settings, name)
    retention = read_model(RetentionSettings, raw, f"{SECTION}.storages.{name}.retention")
    storage = msgspec.structs.replace(
        settings.cache.storages[name], retention=retention, history=None
    )
    storages = {**settings.cache.storages, name: storage}
    cache = msgspec.structs.replace(settings.cache, storages=storages)
    return replace(settings, cache=cache, kept=settings.kept.with_retention(name, raw))


_Volumes = dict[str, VolumeSettings | None]
"""Volumes by name; None where what the file says of one is wrong."""


def _good(volumes: _Volumes) -> dict[str, VolumeSettings]:
    return {name: volume for name, volume in volumes.items() if volume is not None}


def _check_is_there(settings: Settings, name: str) -> None:
    if name not in settings.cache.storages:
        there = ", ".join(settings.cache.storages)
        raise ConfigError(
            f"{SECTION}.storages.{name[:80]}: there is no such storage; there are: {there}"
        )


def _service(ours: Mapping[str, object], findings: Findings) -> ServiceSettings:
    with findings.noting():
        check_names(ours, ServiceSettings.__struct_fields__, SECTION)
    state_dir = ours.get("state_dir", STATE_DIR_DEFAULT)
    domain = ours.get("domain", "default")
    with findings.noting():
        if not isinstance(state_dir, str) or not state_dir or "\0" in state_dir:
            raise ConfigError(f"{SECTION}.state_dir: expected the path of a directory")
    with findings.noting():
        if not is_domain(domain):
            raise ConfigError(f"{SECTION}.domain: expected {DOMAIN_WORDS}")
    http = readable_model(HttpSettings, ours.get("http", {}), f"{SECTION}.http", findings)
    rest = readable_model(RestSettings, ours.get("rest", {}), f"{SECTION}.rest", findings)
    for name, section in (("http", http), ("rest", rest)):
        with findings.noting():
            if section is not None and section.listen:
                split_address(section.listen, f"{SECTION}.{name}.listen")
    volumes: _Volumes | None = None
    with findings.noting():
        volumes = _volumes(ours.get("volumes"), str(state_dir), findings)
    storages: dict[str, StorageSettings] = {}
    with findings.noting():
        storages = _storages(ours.get("storages"), volumes, findings)
    pipes: dict[str, PipeSettings] = {}
    with findings.noting():
        pipes = read_pipes(ours.get("pipes", {}), findings)
    return ServiceSettings(
        state_dir=str(state_dir),
        domain=str(domain),
        http=http or HttpSettings(),
        rest=rest or RestSettings(),
        volumes=_good(volumes or {}),
        storages=storages,
        pipes=pipes,
    )


def _volumes(raw: object, state_dir: str, findings: Findings) -> _Volumes:
    if raw is None:
        url = f"sqlite:///{Path(state_dir) / 'samples.db'}"
        return {"main": VolumeSettings(backend="sql", options={"url": url})}
    volumes: _Volumes = {}
    for name, value in read_table(raw, f"{SECTION}.volumes").items():
        volumes[name] = None
        with findings.noting():
            volumes[name] = _volume(name, value)
    return volumes


def _volume(name: str, raw: object) -> VolumeSettings:
    """Read a volume; as in zenohd's file, one that names no backend is called like it."""
    where = f"{SECTION}.volumes.{name}"
    options = dict(read_table(raw, where))
    backend = options.pop("backend", name if name in BACKENDS else None)
    if not isinstance(backend, str) or not backend:
        raise ConfigError(f'{where}.backend: name a backend, as in backend: "sql"')
    scheme = _SCHEMES.get(backend)
    url = options.get("url")
    if scheme is not None and isinstance(url, str) and not url.startswith(scheme):
        raise ConfigError(f"{where}.url: the backend {backend!r} wants {scheme[0]}//…")
    return VolumeSettings(backend=BACKENDS.get(backend, backend), options=options)


def _storages(
    raw: object, volumes: _Volumes | None, findings: Findings
) -> dict[str, StorageSettings]:
    """Read the storages; where the volumes are wrong themselves (None), no name is looked up."""
    where = f"{SECTION}.storages"
    table = read_table(raw if raw is not None else {}, where)
    if not table:
        raise ConfigError(f'{where}: name at least one, as in fleet: {{key_expr: "fleet/**"}}')
    if len(table) > STORAGES_MAX:
        raise ConfigError(f"{where}: {len(table)} storages; one service takes {STORAGES_MAX}")
    storages: dict[str, StorageSettings] = {}
    for name, value in table.items():
        storages |= _storage(name, value, volumes, findings)
    return storages


def _storage(
    name: str, raw: object, volumes: _Volumes | None, findings: Findings
) -> dict[str, StorageSettings]:
    """Return what is right of a storage under its name, nothing where it is none at all."""
    where = f"{SECTION}.storages.{name}"
    with findings.noting():
        check_name(name, where)
        if name in _TAKEN:
            raise ConfigError(f"{where}: the name is taken by the service itself; choose another")
    with findings.noting():
        table = dict(read_table(raw, where))
        with findings.noting():
            _check_volume(table.get("volume"), where)
        if isinstance(volume := table.get("volume"), Mapping):
            table["volume"] = volume.get("id", "")
        with findings.noting():
            _check_key_exprs(table, where)
        anything = {"key_expr": "**"}
        storage = readable_model(StorageSettings, table, where, findings, instead=anything)
        if storage is not None:
            return {name: _related(storage, volumes, where, findings)}
    return {}


def _related(
    storage: StorageSettings, volumes: _Volumes | None, where: str, findings: Findings
) -> StorageSettings:
    """Check a storage's settings against each other and against its volume."""
    with findings.noting():
        if storage.history and storage.retention.samples_max:
            raise ConfigError(
                f"{where}.history: the same as retention.samples_max; keep one of them"
            )
    if volumes is not None:
        with findings.noting():
            storage = _on_volume(storage, volumes, where)
    return storage


def _check_volume(volume: object, where: str) -> None:
    """Check zenohd's ``volume: {id: "main"}``, where nothing but the id stands."""
    if not isinstance(volume, Mapping):
        return
    more = sorted(str(name) for name in volume if name != "id")
    if more:
        raise ConfigError(
            f"{where}.volume.{more[0]}: only the volume's id stands here; how it stores is an "
            f"option of the volume itself, under {SECTION}.volumes"
        )


def _on_volume(storage: StorageSettings, volumes: _Volumes, where: str) -> StorageSettings:
    """Return the storage with its volume's name; ConfigError when it has none that will do."""
    if storage.volume == "memory":  # it is always there, as in zenohd
        volumes.setdefault("memory", VolumeSettings(backend="memory", options={}))
    named = [name for name in volumes if name != "memory"] or list(volumes)
    if not storage.volume and len(named) == 1:
        storage = msgspec.structs.replace(storage, volume=named[0])
    if not storage.volume:
        raise ConfigError(f"{where}.volume: missing; name one of: {_names(volumes)}")
    if storage.volume not in volumes:
        raise ConfigError(
            f"{where}.volume: no volume is called {storage.volume!r}; there are: {_names(volumes)}"
            f"{_meant(storage.volume, volumes)}"
        )
    volume = volumes[storage.volume]
    if volume is not None and volume.backend == "memory" and storage.level > Durability.MEMORY:
        raise ConfigError(
            f"{where}.acknowledge: level {storage.acknowledge!r} cannot be kept in memory; "
            'write acknowledge: "memory" or choose a volume that is durable'
        )
    return storage


def _check_key_exprs(table: Mapping[str, object], where: str) -> None:
    """Check what is stored and left out, as far as it is text; the model sees to the rest."""
    findings = Findings()
    parsed: dict[str, list[KeyExpression]] = {"key_expr": [], "exclude": []}
    for name, found in parsed.items():
        for text in _texts_in(table.get(name)):
            with findings.noting(), wrong_at(f"{where}.{name}"):
                found.append(parse_short(text))
    if table.get("key_expr") == []:
        with findings.noting():
            raise ConfigError(f"{where}.key_expr: name at least one key expression")
    for key_expr in parsed["key_expr"]:
        with findings.noting():
            if key_expr.intersects(_OURS) and not _POSITIONS.includes(key_expr):
                raise ConfigError(
                    f"{where}.key_expr: {str(key_expr)!r} would store our own messages; of those, "
                    f"{str(_POSITIONS)!r} may be stored, the positions of durable consumers"
                )
            if any(other.includes(key_expr) for other in parsed["exclude"]):
                raise ConfigError(f"{where}.exclude: leaves nothing of {str(key_expr)!r} to store")
    findings.end()


def _texts_in(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _names(volumes: Iterable[str]) -> str:
    return ", ".join(volumes) or "none"


def _masked(options: Mapping[str, object]) -> dict[str, object]:
    return {name: mask(value, name) for name, value in options.items()}


def _check_json(value: object, name: str) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}; write plain text, numbers and tables") from error
