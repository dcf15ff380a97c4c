"""SIGKILL of the service at random moments under load: every acknowledged sample is there after."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest

from durable_cache import Kind, Qos, Sample, declare_reliable_publisher
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.publisher import Receipt, ReliablePublisher
from durable_cache.endpoints.session import close_session, open_session, zid_of
from durable_cache.testing.network import free_port, wait_until
from tests.kit.faults import ModuleProcess

ENCODINGS = ("zenoh/bytes", "application/json;v1", "text/plain", "application/cdr;imu")


class Load:
    """Publishes varied samples until it is stopped, and keeps what it published."""

    def __init__(self, publisher: ReliablePublisher[Receipt], seed: int) -> None:
        self._publisher = publisher
        self._chance = random.Random(seed)
        self._stop = Event()
        self.receipts: list[Receipt] = []
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        chance = self._chance
        while not self._stop.is_set():
            for _ in range(chance.randint(1, 40)):
                attachment = chance.choice([None, b"", chance.randbytes(30)])
                if chance.random() < 0.1:
                    receipt = self._publisher.delete(attachment=attachment)
                else:
                    payload = chance.randbytes(chance.choice([0, 1, 60, 500, 20_000]))
                    encoding = chance.choice(ENCODINGS)
                    receipt = self._publisher.put(payload, encoding=encoding, attachment=attachment)
                assert receipt is not None
                self.receipts.append(receipt)
            time.sleep(0.01 + chance.random() * 0.03)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def comparable(sample: Sample) -> Sample:
    return msgspec.structs.replace(sample, received_ns=0, epoch=0)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.nightly)])
def test_no_acknowledged_sample_is_lost_when_the_service_is_killed(
    tmp_path: Path, kills: int
) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    config = tmp_path / "config.json5"
    config.write_text(
        f"""{{
          mode: "router", listen: {{ endpoints: ["{endpoint}"] }},
          scouting: {{ multicast: {{ enabled: false }} }},
          plugins: {{ durable_cache: {{
            state_dir: "{tmp_path}/state",
            volumes: {{ main: {{ backend: "sql", url: "sqlite:///{tmp_path}/samples.db" }} }},
            storages: {{ fleet: {{ key_expr: "fleet/**", volume: "main" }} }} }} }} }}"""
    )
    chance = random.Random(20)
    session = open_session(
        {
            "mode": "peer",
            "listen": {"endpoints": []},
            "connect": {
                "endpoints": [endpoint],
                "timeout_ms": -1,
                "exit_on_failure": False,
                "retry": {
                    "period_init_ms": 50,
                    "period_max_ms": 200,
                    "period_increase_factor": 1.5,
                },
            },
            "scouting": {"multicast": {"enabled": False}},
            "timestamping": {"enabled": True},
        }
    )
    service = ModuleProcess(
        "durable_cache.service",
        ["serve", "--config", str(config)],
        ready="try from another terminal",
        folder=tmp_path,
    )
    publisher = declare_reliable_publisher(
        session, "fleet/one", acknowledgements=1, history=200_000, qos=Qos(4, 1, False)
    )
    load: Load | None = None
    try:
        service.start()
        wait_until(lambda: publisher.matched, 30, "the first match")
        load = Load(publisher, 7)
        for _ in range(kills):
            time.sleep(0.05 + chance.random() * 0.5)
            service.kill()
            service.start()
        load.stop()
        last = load.receipts[-1]
        assert last.wait(60), "the last sample was never acknowledged"
        # What came while the service was dead is recovered from the publisher's own cache.
        receipts = load.receipts
        wait_until(lambda: all(one.caches for one in receipts), 90, "recovery of the rest")
        acknowledged = {receipt.sn for receipt in load.receipts if receipt.caches}
        assert len(acknowledged) > 1000
        published = {sample.sn: sample for sample in publisher.kept()}
        publisher.close()  # from here on only the service can answer
        asking = Asking(session, zid_of(session), timeout_seconds=20)
        stored: dict[int, Sample] = {}
        for page in asking.history("fleet/**", "*"):
            for sample in page:
                assert sample.sn not in stored or stored[sample.sn] == sample
                stored[sample.sn] = sample
        lost = acknowledged - stored.keys()
        assert not lost
        for sn in acknowledged:
            assert comparable(stored[sn]) == comparable(published[sn])
        assert {stored[sn].kind for sn in acknowledged} == {Kind.PUT, Kind.DELETE}
        sys.stderr.write(f"{len(acknowledged)} acknowledged, {len(load.receipts)} published\n")
    finally:
        if load is not None:
            load.stop()
        publisher.close()
        close_session(session)
        service.close()
