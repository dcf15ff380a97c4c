"""A Zenoh router made of a Python session; takes the few options of zenohd that compose uses."""

import argparse
import json
import signal

import zenoh


def main() -> None:
    """Route until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-l", "--listen", action="append", default=[])
    parser.add_argument("--no-multicast-scouting", action="store_true")
    chosen = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", json.dumps(chosen.listen or ["tcp/0.0.0.0:7447"]))
    config.insert_json5("timestamping/enabled", "true")
    if chosen.no_multicast_scouting:
        config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config):
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
