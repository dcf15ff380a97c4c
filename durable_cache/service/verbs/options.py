"""Which options several verbs share, and how they become settings."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from durable_cache.service.layers import LISTEN_DEFAULT, Overrides, overrides_from

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Verbs = argparse._SubParsersAction

__all__ = ["Verbs", "add_client_options", "add_config_options", "overrides_of"]


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add what names or overrides a configuration."""
    parser.add_argument("--config", default="", metavar="FILE", help="JSON5 or YAML file")
    parser.add_argument("--state-dir", default="", metavar="DIR", help="where journals are kept")
    parser.add_argument("--domain", default="", help="caches of one domain know each other")
    parser.add_argument("--http", default="", metavar="HOST:PORT", help="status page and metrics")
    parser.add_argument("--mode", default="", choices=["", "peer", "client", "router"])
    parser.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ENDPOINT",
        help=f"where Zenoh listens; {LISTEN_DEFAULT} without a file",
    )
    parser.add_argument(
        "--connect", action="append", default=[], metavar="ENDPOINT", help="whom Zenoh connects to"
    )
    parser.add_argument(
        "--key-expr",
        action="append",
        default=[],
        metavar="KEY_EXPR",
        help="what to store where no file says so; may be repeated; ** by default",
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where the running services are."""
    connect = [part for part in os.environ.get("DURABLE_CACHE_CONNECT", "").split(",") if part]
    parser.add_argument(
        "--connect",
        action="append",
        default=None,
        metavar="ENDPOINT",
        help="whom to connect to, as in tcp/127.0.0.1:7447; found by scouting without it",
    )
    parser.add_argument("--mode", default="", choices=["", "peer", "client"])
    parser.set_defaults(connect_default=connect)


def overrides_of(arguments: argparse.Namespace) -> Overrides:
    """Return what the command line names, and the environment where it names nothing."""
    named = Overrides(
        config=arguments.config,
        state_dir=arguments.state_dir,
        domain=arguments.domain,
        http=arguments.http,
        mode=arguments.mode,
        listen=arguments.listen,
        connect=arguments.connect,
        key_expr=arguments.key_expr,
    )
    return named.over(overrides_from(os.environ))
