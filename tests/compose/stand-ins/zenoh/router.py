"""A Zenoh router made of a Python session; takes the few options of zenohd that compose uses."""

import argparse
import json
import signal
from threading import Event

import zenoh


def main() -> None:
    """Route until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-l", "--listen", action="append", default=[])
    parser.add_argument("--no-multicast-scouting", action="store_true")
    chosen = parser.parse_args()
    stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", json.dumps(chosen.listen or ["tcp/0.0.0.0:7447"]))
    config.insert_json5("timestamping/enabled", "true")
    if chosen.no_multicast_scouting:
        config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config):
        stopped.wait()


if __name__ == "__main__":
    main()
