"""From Zenoh to a Spark DataFrame: publish, store in Delta, ask with SQL.

Needs ``pip install 'durable-cache[delta,spark]'`` and Java 17; the first run fetches the Delta
jars. ``python examples/zenoh_to_dataframe.py [FOLDER]`` leaves the history in FOLDER/delta/demo.
"""

from __future__ import annotations

import sys
from pathlib import Path

import durable_cache as dc
from durable_cache.spark import history, register_views, spark_session, with_value

SAMPLES = 100
ALONE = {"scouting": {"multicast": {"enabled": False}}, "listen": {"endpoints": []}}


def record(folder: Path) -> None:
    """Publish on Zenoh with a durable cache beside; return once everything is in the table."""
    lake = {"path": str(folder / "delta")}
    options = dc.CacheOptions(name="demo", state_dir=folder / "state")
    with (
        dc.open_session(ALONE) as session,
        dc.declare_reliability_cache(
            session, "fleet/**", backend="delta", backend_options=lake, options=options
        ) as cache,
        dc.declare_reliable_publisher(
            session, "fleet/r1/battery", acknowledgements=1, encoding="text/plain"
        ) as publisher,
    ):
        receipts = [publisher.put(f"{100 - n / 10:.1f}") for n in range(SAMPLES)]
        for receipt in receipts:
            if receipt is None or not receipt.wait(30):
                raise TimeoutError("the cache did not acknowledge every sample within 30 s")
        if not cache.wait_drained(30):
            raise TimeoutError("the cache did not write every sample to Delta within 30 s")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "durable-cache-data").resolve()
    record(folder)
    spark = spark_session()
    table = folder / "delta" / "demo"
    charge = with_value(history(spark, table, "fleet/*/battery"))
    charge.select("key_expr", "sn", "timestamp", "number").orderBy("sn").show(5, truncate=False)
    register_views(spark, table)
    spark.sql("select key_expr, source, samples, runs, first_sn, last_sn from streams").show()
    spark.stop()


if __name__ == "__main__":
    main()
