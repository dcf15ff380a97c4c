"""Which options several verbs share, and how they become settings.

Names and letters are zenohd's and those of Zenoh's examples, where these have one.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_domain

if TYPE_CHECKING:
    from durable_cache.service.layers import Overrides

_PLUGINS_OURS = frozenset({"", "durable_cache"})


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add what names or overrides a configuration."""
    ours = parser.add_argument_group("configuration")
    ours.add_argument("-c", "--config", default="", metavar="FILE", help="JSON5 or YAML file")
    ours.add_argument("--state-dir", default="", metavar="DIR", help="where journals are kept")
    ours.add_argument("--domain", default="", help="caches of one domain know each other")
    ours.add_argument("--http", default="", metavar="HOST:PORT", help="status page and metrics")
    ours.add_argument(
        "-k",
        "--key-expr",
        action="append",
        default=[],
        metavar="KEY_EXPR",
        help="what to store where no file says so; may be repeated; ** by default",
    )
    zenoh = _add_session_options(parser, ["peer", "client", "router"])
    zenoh.add_argument("-i", "--id", default="", metavar="ZID", help="the session's Zenoh id")
    zenoh.add_argument(
        "--adminspace-permissions",
        default="",
        choices=["r", "w", "rw", "none"],
        help="what the admin space lets others do; w lets `durable-cache purge` work",
    )
    zenoh.add_argument("-P", "--plugin", action="append", default=[], help=argparse.SUPPRESS)
    ours.add_argument(
        "--rest-http-port",
        default="",
        metavar="[HOST:]PORT",
        help="read and write keys over HTTP as zenohd's REST plugin does, on 127.0.0.1 unless said",
    )


def _add_session_options(
    parser: argparse.ArgumentParser, modes: list[str]
) -> argparse._ArgumentGroup:
    zenoh = parser.add_argument_group("Zenoh's own settings, as zenohd takes them")
    zenoh.add_argument("-m", "--mode", default="", choices=modes)
    zenoh.add_argument(
        "-l",
        "--listen",
        action="append",
        default=[],
        metavar="ENDPOINT",
        help="where Zenoh listens, as in tcp/[::]:7447",
    )
    zenoh.add_argument(
        "-e",
        "--connect",
        action="append",
        default=[],
        metavar="ENDPOINT",
        help="whom Zenoh connects to, as in tcp/127.0.0.1:7447",
    )
    zenoh.add_argument(
        "--cfg",
        action="append",
        default=[],
        metavar="KEY:VALUE",
        help="any other setting, as in transport/unicast/max_links:4; the value is JSON5",
    )
    zenoh.add_argument(
        "--no-multicast-scouting", action="store_true", help="neither look for others nor be found"
    )
    return zenoh


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where the running services are."""
    zenoh = _add_session_options(parser, ["peer", "client"])
    zenoh.add_argument(
        "-c", "--config", default="", metavar="FILE", help="Zenoh's configuration, TLS and all"
    )
    zenoh.add_argument(
        "--context", default="", metavar="NAME", help="services named by `durable-cache context`"
    )
    zenoh.description = (
        "Without --connect, a file and a context, caches are looked for on this machine and by "
        "scouting."
    )


def add_format_option(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add ``--format`` and ``--json``, which is short for one of its values."""
    parser.add_argument(
        "--format", choices=["table", "json", *more], default="table", help="how it is written"
    )
    parser.add_argument(
        "--json", action="store_const", dest="format", const="json", help="as --format json"
    )


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--output``, whose name says the format where ``--format`` does not."""
    parser.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FILE",
        help="a new file, whole or not there at all; its suffix is the format",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to a verb that says one thing at its end."""
    parser.add_argument("--json", action="store_true", help="the result as JSON, for programs")


def add_guarantee_options(parser: argparse.ArgumentParser) -> None:
    """Add what must be acknowledged before a sample counts as stored."""
    parser.add_argument(
        "--acknowledgements", type=int, default=1, metavar="CACHES", help="how many must hold it"
    )
    parser.add_argument(
        "--level",
        choices=["memory", "process", "disk"],
        default="disk",
        help="what it must survive there: nothing, SIGKILL, a power cut",
    )


def add_domain_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--domain`` to a verb that publishes or subscribes."""
    parser.add_argument(
        "--domain", default="", help="the caches' domain; DURABLE_CACHE_DOMAIN or `default`"
    )


def domain_of(arguments: argparse.Namespace) -> str:
    """Return the domain that is named, or else the environment's; ConfigError where it is none."""
    domain = arguments.domain or os.environ.get("DURABLE_CACHE_DOMAIN", "") or "default"
    check_domain(domain, "--domain" if arguments.domain else "DURABLE_CACHE_DOMAIN")
    return str(domain)


def overrides_of(arguments: argparse.Namespace) -> Overrides:
    """Return what the command line names, and the environment where it names nothing."""
    from durable_cache.service.layers import Overrides, overrides_from

    _refuse_plugins(arguments)
    named = Overrides(
        config=arguments.config,
        state_dir=arguments.state_dir,
        domain=arguments.domain,
        http=arguments.http,
        mode=arguments.mode,
        listen=arguments.listen,
        connect=arguments.connect,
        key_expr=arguments.key_expr,
        rest=arguments.rest_http_port,
        zid=arguments.id,
        cfg=arguments.cfg,
        permissions=arguments.adminspace_permissions,
        scouting_off=arguments.no_multicast_scouting,
    )
    return named.over(overrides_from(os.environ))


def _refuse_plugins(arguments: argparse.Namespace) -> None:
    """Say what stands for zenohd's plugins here; ConfigError where one is asked for."""
    for name in arguments.plugin:
        if name.partition(":")[0] not in _PLUGINS_OURS:
            raise ConfigError(
                f"--plugin {name}: plugins of zenohd are not loaded here; storages are named under "
                "plugins.durable_cache, every other plugin runs in a zenohd beside it"
            )
