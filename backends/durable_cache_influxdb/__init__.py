"""The backend that keeps history in InfluxDB 2: one measurement per storage, ready to chart."""

from durable_cache_influxdb.backend import InfluxDbBackend
from durable_cache_influxdb.options import InfluxDbOptions

__all__ = ["InfluxDbBackend", "InfluxDbOptions"]
