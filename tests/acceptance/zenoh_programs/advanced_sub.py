"""A subscriber in the shape of zenoh-python's own example: prints what it gets until stdin ends."""

import argparse
import json
import sys

import zenoh
from zenoh.ext import HistoryConfig, Miss, RecoveryConfig, declare_advanced_subscriber


def say(line: str) -> None:
    """Print a line whole: callbacks run on several threads."""
    print(f"{line}\n", end="", flush=True)


def main(conf: zenoh.Config, key: str) -> None:
    """Print samples, misses and publishers."""
    zenoh.init_log_from_env_or("error")
    with zenoh.open(conf) as session:

        def listener(sample: zenoh.Sample) -> None:
            note = sample.attachment.to_string() if sample.attachment else None
            number = sample.source_info.source_sn if sample.source_info else None
            say(
                f"{sample.kind} ('{sample.key_expr}': '{sample.payload.to_string()}') "
                f"{sample.encoding} {sample.congestion_control} sn={number} note={note} "
                f"stamped={sample.timestamp is not None}"
            )

        subscriber = declare_advanced_subscriber(
            session,
            key,
            listener,
            history=HistoryConfig(detect_late_publishers=True),
            recovery=RecoveryConfig(heartbeat=True),
            subscriber_detection=True,
        )

        def miss_listener(miss: Miss) -> None:
            say(f"missed {miss.nb} samples from {miss.source}")

        subscriber.sample_miss_listener(miss_listener)

        def seen(sample: zenoh.Sample) -> None:
            say(f"publisher {str(sample.key_expr).split('/@adv/')[0]} {sample.kind}")

        watch = subscriber.detect_publishers(seen, history=True)
        sys.stdin.read()
        watch.undeclare()
        subscriber.undeclare()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", "-e", required=True)
    parser.add_argument("--key", "-k", default="demo/example/**")
    arguments = parser.parse_args()
    config = zenoh.Config()
    config.insert_json5("mode", json.dumps("client"))
    config.insert_json5("connect/endpoints", json.dumps([arguments.connect]))
    config.insert_json5("timestamping/enabled", "true")
    main(config, arguments.key)
