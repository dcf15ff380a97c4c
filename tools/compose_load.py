"""Which samples did the compose test publish, which were acknowledged, and who holds them?"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping

import zenoh
from compose_containers import Failed

import durable_cache
from durable_cache.protocol.wire import decode_envelope

KEYS = tuple(f"demo/compose/{name}" for name in ("lidar", "pose", "battery"))
CHUNK_SAMPLES = 500
_PAYLOAD_BYTES = 256


def reader(endpoint: str) -> zenoh.Session:
    """Open a plain Zenoh session on the router."""
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([endpoint]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


class Load:
    """Publishers through the router, and which of their samples were acknowledged."""

    def __init__(self, endpoint: str, rate: float) -> None:
        config = {
            "mode": "client",
            "connect": {"endpoints": [endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
        self._endpoint = endpoint
        self.session = durable_cache.open_session(config)
        self.publishers = {
            key: durable_cache.declare_reliable_publisher(
                self.session, key, history=200_000, acknowledgements=1
            )
            for key in KEYS
        }
        self.receipts: dict[str, list[tuple[durable_cache.Receipt, bytes]]] = {k: [] for k in KEYS}
        self.refused = 0
        self._pause = 1 / rate
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="load")
        self._thread.start()

    def put(self, key: str) -> None:
        """Publish the next sample of a key and remember its receipt."""
        payload = f"{key} {len(self.receipts[key])} ".encode().ljust(_PAYLOAD_BYTES, b".")
        try:
            receipt = self.publishers[key].put(payload)
        except zenoh.ZError:
            self.refused += 1
            return
        if receipt is None:
            raise Failed("a publisher with acknowledgements gave no receipt")
        self.receipts[key].append((receipt, payload))

    def _publish(self) -> None:
        while not self._stopped.wait(self._pause):
            for key in KEYS:
                self.put(key)

    def finish(self, caches: Mapping[str, str], seconds_max: float) -> None:
        """Stop; then publish last samples until each of `caches` (zid: name) holds one of each key.

        From then on every gap that a cache still has is a gap it knows of.
        """
        self.halt()
        deadline = time.monotonic() + seconds_max
        with reader(self._endpoint) as session:
            for key in KEYS:
                newest = len(self.receipts[key])
                while lacking := self._without(session, key, newest, caches):
                    if time.monotonic() > deadline:
                        raise Failed(f"{key}: nothing new arrives at {', '.join(lacking)}")
                    self.put(key)
                    time.sleep(1.0)

    def _without(
        self, session: zenoh.Session, key: str, newest: int, caches: Mapping[str, str]
    ) -> list[str]:
        sns = [receipt.sn for receipt, _ in self.receipts[key][newest:]]
        if not sns:
            return sorted(caches.values())
        found = held(session, key, str(self.publishers[key].source), max(sns), min(sns))
        return sorted(name for zid, name in caches.items() if not found.get(zid))

    def halt(self) -> None:
        """Stop publishing; twice is once."""
        self._stopped.set()
        self._thread.join()

    def acknowledged(self, key: str) -> dict[int, bytes]:
        """Return the payloads that at least one cache has acknowledged on disk, by sn."""
        return {receipt.sn: payload for receipt, payload in self.receipts[key] if receipt.done}

    def close(self) -> None:
        """Take the publishers, and the caches of their own, away."""
        self.halt()
        self.session.close()


def held(
    session: zenoh.Session, key: str, source: str, last: int, first: int = 0
) -> dict[str, dict[int, bytes]]:
    """Return what each responder holds of a key, by the responder's zid and sn."""
    found: dict[str, dict[int, bytes]] = {}
    for begin in range(first, last + 1, CHUNK_SAMPLES):
        selector = f"{source}/{key}?_sn={begin}..{min(last, begin + CHUNK_SAMPLES - 1)}"
        for reply in session.get(
            selector,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=30.0,
        ):
            if reply.ok is None or reply.ok.attachment is None or reply.replier_id is None:
                continue
            envelope = decode_envelope(reply.ok.attachment.to_bytes())
            responder = str(reply.replier_id.zid)
            found.setdefault(responder, {})[envelope.sn] = reply.ok.payload.to_bytes()
    return found
