"""A publisher in the shape of zenoh-python's own example: puts five values, then one for a line."""

import argparse
import json
import sys

import zenoh
from zenoh.ext import CacheConfig, MissDetectionConfig, declare_advanced_publisher


def main(conf: zenoh.Config, key: str, history: int) -> None:
    """Publish until there are no more lines."""
    zenoh.init_log_from_env_or("error")
    with zenoh.open(conf) as session:
        publisher = declare_advanced_publisher(
            session,
            zenoh.KeyExpr(key),
            encoding=zenoh.Encoding.TEXT_PLAIN,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.DATA_HIGH,
            express=True,
            reliability=zenoh.Reliability.RELIABLE,
            cache=CacheConfig(max_samples=history),
            sample_miss_detection=MissDetectionConfig(heartbeat=0.5),
            publisher_detection=True,
        )
        print(f"on {publisher.key_expr}: {publisher.encoding}, {publisher.priority}", flush=True)
        for number in range(5):
            publisher.put(f"[{number:4d}] from Python", attachment=b"note")
        print("put 5", flush=True)
        for line in sys.stdin:
            if line.strip() == "delete":
                publisher.delete(timestamp=session.new_timestamp())
            else:
                publisher.put(
                    zenoh.ZBytes(line.strip()),
                    encoding=zenoh.Encoding.APPLICATION_JSON.with_schema("v1"),
                    timestamp=session.new_timestamp(),
                )
            print(f"put {line.strip()}", flush=True)
        publisher.undeclare()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", "-e", required=True)
    parser.add_argument("--key", "-k", default="demo/example/zenoh-python-pub")
    parser.add_argument("--history", type=int, default=1)
    arguments = parser.parse_args()
    config = zenoh.Config()
    config.insert_json5("mode", json.dumps("client"))
    config.insert_json5("connect/endpoints", json.dumps([arguments.connect]))
    config.insert_json5("timestamping/enabled", "true")
    main(config, arguments.key, arguments.history)
