"""InfluxDB backend."""
