"""U2: README's ten lines end by themselves as printed, whatever a program leaves open."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import durable_cache
from durable_cache import declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until

TREE = Path(durable_cache.__file__).parents[1]
TEN_LINES = re.search(
    r"## Publish and recover in ten lines\n\n```python\n(.*?)```",
    (TREE / "README.md").read_text(),
    re.DOTALL,
)
LEFT_OPEN = """
import durable_cache as dc

session = dc.open_session({"connect": {"endpoints": ["tcp/localhost:7447"]}})
"""
PROGRAMS = {
    "publisher": 'p = dc.declare_reliable_publisher(session, "lot/1"); p.put(b"x")',
    "receipts": 'p = dc.declare_reliable_publisher(session, "lot/1", acknowledgements=1)\n'
    'p.put(b"x").wait(5)',
    "subscriber": 's = dc.declare_reliable_subscriber(session, "lot/**", print, history=True)',
    "cache": 'c = dc.declare_reliability_cache(session, "other/**")',
    "all": 's = dc.declare_reliable_subscriber(session, "lot/**", history=True)\n'
    's.sample_miss_listener(print)\nc = dc.declare_reliability_cache(session, "lot/**")\n'
    'p = dc.declare_reliable_publisher(session, "lot/1", acknowledgements=2)\n'
    'p.put(b"x"); print(s.recv(5))',
    "raises": 'p = dc.declare_reliable_publisher(session, "lot/1"); raise SystemExit(3)',
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    directory = tmp_path_factory.mktemp("cache")
    with (
        LocalNetwork() as network,
        declare_reliability_cache(
            network.client(),
            ["fleet/**", "lot/**"],
            backend="sql",
            backend_options={"url": f"sqlite:///{directory}/samples.db"},
            state_dir=directory,
        ),
    ):
        yield network


def start(network: LocalNetwork, program: str) -> subprocess.Popen[str]:
    """Run a program as printed, but for where it connects to and how its session is opened."""
    program = program.replace("tcp/localhost:7447", network.endpoint)
    program = program.replace(
        'open_session({"connect"',
        'open_session({"mode": "client", "scouting": {"multicast": {"enabled": False}}, "connect"',
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail("the program does not end")
    return process.returncode, out, err


def test_the_ten_lines_end_as_printed(network: LocalNetwork) -> None:
    assert TEN_LINES is not None
    code, out, err = ended(start(network, TEN_LINES[1]))
    assert (code, err) == (0, "")
    assert "b'x=1 y=2'" in out


@pytest.mark.parametrize("left", PROGRAMS)
def test_a_program_that_leaves_things_open_ends(network: LocalNetwork, left: str) -> None:
    code, _, err = ended(start(network, LEFT_OPEN + PROGRAMS[left]))
    assert (code, err) == (3 if left == "raises" else 0, "")


def test_ctrl_c_ends_a_program_without_an_abort(network: LocalNetwork) -> None:
    program = LEFT_OPEN + PROGRAMS["all"] + '\nprint("waiting", flush=True)\nlist(s)\n'
    process = start(network, program)
    assert process.stdout is not None
    wait_until(lambda: "waiting" in (process.stdout.readline() if process.stdout else ""))
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == -signal.SIGINT, err
    assert "Fatal" not in err
    assert "KeyboardInterrupt" in err
