"""What each verb of ``durable-cache spark`` does; pyspark is imported once one of them runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from durable_cache.errors import BackendNotInstalled, ConfigError
from durable_cache.spark.jars import COORDINATES, default_folder, fetch_jars
from durable_cache.spark.showing import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from durable_cache.spark.selecting import Part
    from durable_cache.spark.verification import Verification

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

ROWS_SHOWN = 50
DIFFERS = 1


_EXAMPLES = {
    "sql": '"select * from gaps"',
    "history": "--key-expr 'fleet/7/**' --since 2026-11-01T00:00:00Z",
    "gap-report": "--key-expr 'fleet/**' --to gaps",
    "delivery-report": "--html delivery.html",
    "latest": "--to latest",
    "downsample": "--every 60 --keep mean --to minutes",
    "export": "--to parquet --key-expr 'fleet/**'",
    "replay-plan": "--rate 2 --to plan",
    "verify": "--against copy/fleet",
}
"""What each verb's example gives it behind the table."""
_IMPORT = "--from sql --option url=sqlite:///samples.db --storage fleet --to lake"


def add_spark_verbs(subparsers: Verbs) -> None:
    """Add every verb to `subparsers`; each sets ``run``, a function of the arguments -> int.

    Their parsers take `examples`, which their help ends with.
    """
    summary = f"fetch the jars of {COORDINATES} into a folder"
    jars = _parser(subparsers, "jars", summary, "--to spark-jars")
    jars.add_argument("--to", type=Path, default=default_folder(), metavar="FOLDER")
    jars.add_argument("--repository", metavar="URL", help="a Maven repository to ask as well")
    _add_json(jars)
    jars.set_defaults(run=_jars)
    _add_queries(subparsers)
    _add_reports(subparsers)
    _add_tables(subparsers)
    _add_comparisons(subparsers)


def _add_queries(subparsers: Verbs) -> None:
    sql = _verb(subparsers, "sql", _sql, "ask the views of a storage (samples, latest, gaps, …)")
    sql.add_argument("query", help="such as 'select * from gaps'")
    _add_showing(sql)
    history = _verb(subparsers, "history", _history, "show samples")
    _add_part(history)
    _add_showing(history)


def _add_reports(subparsers: Verbs) -> None:
    gaps = _verb(subparsers, "gap-report", _gap_report, "list every missing range, longest first")
    gaps.add_argument("--key-expr", default="**")
    gaps.add_argument("--to", metavar="FOLDER", help="write them all as Parquet, too")
    _add_showing(gaps)
    delivery = _verb(subparsers, "delivery-report", _delivery, "how well samples were delivered")
    delivery.add_argument("--key-expr", default="**")
    delivery.add_argument("--html", metavar="FILE")
    delivery.add_argument("--parquet", metavar="FOLDER")
    delivery.add_argument("--json", action="store_true", help="it always is")


def _add_tables(subparsers: Verbs) -> None:
    latest = _verb(subparsers, "latest", _latest, "keep a table of each key's newest sample")
    latest.add_argument("--to", required=True, metavar="FOLDER")
    latest.add_argument("--key-expr", default="**")
    latest.add_argument(
        "--every", type=float, metavar="SECONDS", help="go on until interrupted; else once"
    )
    thin = _verb(subparsers, "downsample", _downsample, "one row per key and interval")
    thin.add_argument("--to", required=True, metavar="FOLDER")
    thin.add_argument("--every", type=float, required=True, metavar="SECONDS")
    thin.add_argument("--keep", choices=["first", "last", "mean"], default="last")
    thin.add_argument("--form", choices=["parquet", "delta"], default="parquet")
    _add_part(thin)
    export = _verb(subparsers, "export", _export, "write samples as Parquet, partitioned by key")
    export.add_argument("--to", required=True, metavar="FOLDER")
    export.add_argument("--buckets", type=int, default=16)
    _add_part(export)
    replay = _verb(subparsers, "replay-plan", _replay_plan, "when each sample is due in a replay")
    replay.add_argument("--to", required=True, metavar="FOLDER")
    replay.add_argument("--rate", type=float, default=1.0, help="2 is twice as fast")
    _add_part(replay)
    for parser in (latest, thin, export, replay):
        _add_json(parser)


def _add_comparisons(subparsers: Verbs) -> None:
    verify = _verb(subparsers, "verify", _verify, "compare a table with another history")
    verify.add_argument("--key-expr", default="**")
    verify.add_argument("--payloads", action="store_true", help="compute the digests anew, too")
    other = verify.add_mutually_exclusive_group(required=True)
    other.add_argument("--against", metavar="TABLE", help="another table")
    other.add_argument("--backend", help="a storage of this backend")
    _add_storage(verify)
    summary = "copy another backend's history into a Delta storage; needs no Java"
    load = _parser(subparsers, "import", summary, _IMPORT)
    load.add_argument("--from", dest="backend", required=True, metavar="BACKEND")
    _add_storage(load)
    load.add_argument("--to", required=True, metavar="FOLDER", help="a volume of the delta backend")
    load.add_argument("--to-storage", metavar="NAME", help="as --storage by default")
    load.add_argument("--key-expr", default="**")
    load.set_defaults(run=_import)
    for parser in (verify, load):
        _add_json(parser)


def _parser(verbs: Verbs, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    examples = (f"durable-cache spark {name} {example}",)
    return verbs.add_parser(name, help=summary, description=f"{summary}.", examples=examples)


def _verb(
    subparsers: Verbs, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> argparse.ArgumentParser:
    parser = _parser(subparsers, name, summary, f"lake/fleet {_EXAMPLES[name]}")
    parser.add_argument("table", help="the folder of a storage of the delta backend")
    parser.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://…")
    parser.add_argument("--jars", type=Path, metavar="FOLDER", help="Delta jars; else from Maven")
    parser.add_argument("--driver-memory", default="2g")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="any Spark setting"
    )
    parser.set_defaults(run=run)
    return parser


def _add_part(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-expr", default="**")
    parser.add_argument("--since", metavar="TIME", help="RFC 3339, included")
    parser.add_argument("--until", metavar="TIME", help="RFC 3339, not included")
    parser.add_argument("--source", default="*", help="<zid> or <zid>:<eid>")
    parser.add_argument("--sn", help="a..b, a.., ..b or a")


def _add_showing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=ROWS_SHOWN, help="rows to show")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--json", action="store_const", dest="format", const="json")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the result as JSON, for programs")


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", default="", metavar="NAME", help="the storage's name there")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of that backend"
    )


def _pairs(given: list[str], name: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{name} {text!r}: write NAME=VALUE")
        pairs[key] = value
    return pairs


@contextlib.contextmanager
def _session(arguments: argparse.Namespace) -> Iterator[SparkSession]:
    try:
        from durable_cache.spark.failures import spark_errors
        from durable_cache.spark.session import spark_session
    except ModuleNotFoundError as error:
        raise BackendNotInstalled("spark", "spark", error.name or "pyspark") from error
    options = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    began = time.monotonic()
    _say("starting Spark")
    session = spark_session(
        master=arguments.master,
        jars=arguments.jars,
        driver_memory=arguments.driver_memory,
        options=options | _pairs(arguments.conf, "--conf"),
    )
    try:
        with spark_errors(arguments.table):
            yield session
    finally:
        session.stop()
    _say(f"done in {time.monotonic() - began:.1f} s")


def _part(arguments: argparse.Namespace) -> Part:
    from durable_cache.spark.selecting import Part

    return Part(
        arguments.key_expr, arguments.since, arguments.until, arguments.source, arguments.sn
    )


def _jars(arguments: argparse.Namespace) -> int:
    jars = fetch_jars(arguments.to, arguments.repository)
    _tell(
        arguments, f"{len(jars)} jars in {arguments.to}", jars=len(jars), folder=str(arguments.to)
    )
    return 0


def _sql(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.views import register_views

        register_views(spark, arguments.table)
        show(spark.sql(arguments.query), arguments.limit, arguments.format)
    return 0


def _history(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.table import open_table

        show(
            _part(arguments).of(spark, open_table(spark, arguments.table)),
            arguments.limit,
            arguments.format,
        )
    return 0


def _gap_report(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.jobs import gap_report
        from durable_cache.spark.outputs import check_apart, write_frame
        from durable_cache.spark.table import open_table

        table = open_table(spark, arguments.table)
        rows = gap_report(spark, table, arguments.key_expr).persist()
        try:
            if arguments.to:
                write_frame(spark, rows, check_apart(table, arguments.to))
            show(rows, arguments.limit, arguments.format)
        finally:
            rows.unpersist()
    return 0


def _delivery(arguments: argparse.Namespace) -> int:
    if not arguments.html and not arguments.parquet:
        raise ConfigError("delivery-report: name --html FILE, --parquet FOLDER or both")
    with _session(arguments) as spark:
        from durable_cache.spark.delivery_report import delivery_report

        total = delivery_report(
            spark, arguments.table, arguments.html, arguments.parquet, arguments.key_expr
        )
    _print(json.dumps({**total._asdict(), "R": total.r, "UR": total.ur}))
    return 0


def _latest(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.latest_table import follow_latest, update_latest

        asked = (arguments.table, arguments.to, arguments.key_expr)
        if arguments.every is None:
            rows = update_latest(spark, *asked)
            _tell(arguments, f"{rows} samples read", samples_read=rows)
            return 0
        query = follow_latest(
            spark,
            *asked,
            every_seconds=arguments.every,
            progress=lambda rows: _say(f"{rows} samples read"),
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
    return 0


def _downsample(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.jobs import downsample

        downsample(
            spark,
            arguments.table,
            arguments.to,
            arguments.every,
            keep=arguments.keep,
            part=_part(arguments),
            form=arguments.form,
        )
    return _written(arguments)


def _export(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.jobs import export

        export(
            spark,
            arguments.table,
            arguments.to,
            buckets=arguments.buckets,
            part=_part(arguments),
        )
    return _written(arguments)


def _written(arguments: argparse.Namespace) -> int:
    if arguments.json:
        _tell(arguments, "", folder=arguments.to)
    return 0


def _replay_plan(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.jobs import replay_plan

        found = replay_plan(
            spark, arguments.table, arguments.to, rate=arguments.rate, part=_part(arguments)
        )
    _tell(
        arguments,
        f"{found.samples} samples, {found.payload_bytes} bytes, {found.seconds:.3f} s, "
        f"at most {found.samples_per_second_max} samples in a second",
        samples=found.samples,
        payload_bytes=found.payload_bytes,
        seconds=found.seconds,
        samples_per_second_max=found.samples_per_second_max,
    )
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    with _session(arguments) as spark:
        from durable_cache.spark.verification import verify, verify_against

        asked = (arguments.key_expr,)
        if arguments.against:
            found = verify(
                spark, arguments.table, arguments.against, *asked, payloads=arguments.payloads
            )
        else:
            from durable_cache.storage.plugins import open_storage

            options = _pairs(arguments.option, "--option")
            with open_storage(
                arguments.backend, _storage(arguments), options, writer=False
            ) as storage:
                found = verify_against(
                    spark, arguments.table, storage, *asked, payloads=arguments.payloads
                )
    return _told(arguments, found)


def _told(arguments: argparse.Namespace, found: Verification) -> int:
    _tell(
        arguments,
        f"{found.here} samples here, {found.there} there; only here {found.only_here}, only there "
        f"{found.only_there}, another payload {found.different}, damaged {found.damaged}",
        here=found.here,
        there=found.there,
        only_here=found.only_here,
        only_there=found.only_there,
        different=found.different,
        damaged=found.damaged,
        examples=[{**asdict(row), "source": str(row.source)} for row in found.examples],
    )
    if not arguments.json:
        for row in found.examples:
            _print(f"  {row.what}: {row.key_expr!r} {row.source} epoch {row.epoch} sn {row.sn}")
    return 0 if found.agrees else DIFFERS


def _storage(arguments: argparse.Namespace) -> str:
    if not arguments.storage:
        raise ConfigError("name the storage: --storage NAME")
    return str(arguments.storage)


def _import(arguments: argparse.Namespace) -> int:
    from durable_cache.spark.importing import import_history

    source = (arguments.backend, _storage(arguments), _pairs(arguments.option, "--option"))
    done = import_history(
        source,
        arguments.to,
        arguments.to_storage or arguments.storage,
        key_expr=arguments.key_expr,
        progress=_counter("samples read"),
    )
    _tell(
        arguments,
        f"{done.new} new of {done.samples} read, {done.conflicts} conflicts, "
        f"{len(done.refused)} refused, {done.missing} missing",
        new=done.new,
        samples=done.samples,
        conflicts=done.conflicts,
        refused=len(done.refused),
        missing=done.missing,
    )
    return 0 if done.missing == 0 else DIFFERS


def _counter(what: str) -> Callable[[int], None]:
    """Return a progress function that says the sum at most once a second."""
    total, told = 0, 0.0

    def progress(count: int) -> None:
        nonlocal total, told
        total += count
        if time.monotonic() - told >= 1.0:
            told = time.monotonic()
            _say(f"{total} {what}")

    return progress


def _tell(arguments: argparse.Namespace, text: str, **values: object) -> None:
    """Print what a verb did: a line for people, or its values as one JSON object."""
    _print(json.dumps(values, default=str) if arguments.json else text)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
