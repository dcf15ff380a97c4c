"""What a configuration means in effect: the verb ``check-config``."""

from __future__ import annotations

import argparse

from durable_cache.service.building import check_all, effective_limits
from durable_cache.service.layers import Overrides, load_settings
from durable_cache.service.output import say, write_json
from durable_cache.service.verbs.options import add_config_options, overrides_of
from durable_cache.service.verbs.parsing import Verbs, add_verb

__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    """Add ``check-config``."""
    parser = add_verb(verbs, "check-config", examples=("durable-cache check-config fleet.json5",))
    parser.add_argument("file", nargs="?", default="", help="the configuration file")
    parser.add_argument(
        "--schema", action="store_true", help="print the file's JSON schema, for editors, instead"
    )
    parser.add_argument("--json", action="store_true", help="it always is")
    add_config_options(parser)
    parser.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        from durable_cache.service.schema import configuration_schema

        write_json(configuration_schema())
        return 0
    named = Overrides(config=arguments.file)
    settings = load_settings(named.over(overrides_of(arguments)))
    volumes, options = check_all(settings)
    limits = {name: effective_limits(chosen) for name, chosen in options.items()}
    write_json(settings.effective(limits))
    for storage, chosen in settings.cache.storages.items():
        volume = volumes[chosen.volume]
        say(f"{storage}: {', '.join(chosen.key_exprs)} -> {volume.backend.name}: {volume.place}")
    for note in settings.notes():
        say(f"note: {note}")
    say("the configuration is good")
    return 0
