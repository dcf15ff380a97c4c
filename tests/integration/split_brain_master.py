"""A cache that is the master of a merge policy, as a process of its own that may end by SIGKILL.

`python -m tests.integration.split_brain_master ENDPOINT FOLDER POLICY`. Where FOLDER has a file
`end`, the process takes it away and kills itself at the place it names: when so many corrections
are stored, or `all`, when none is left and its notes are not yet forgotten.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from durable_cache import CacheOptions, declare_reliability_cache, open_session
from durable_cache.endpoints.alignment.merging import Merging
from durable_cache.protocol.alignment import (
    AlignerOptions,
    Correction,
    Facts,
    MergePolicy,
    SplitBrain,
    SplitBrainOptions,
)

ALIGNER = AlignerOptions(slot_seconds=1, settle_seconds=0.2)


def end() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process outlived SIGKILL")


def end_behind(corrections: int) -> None:
    publish, published = Merging._publish, 0

    def counted(self: Merging, key: str, correction: Correction) -> None:
        nonlocal published
        publish(self, key, correction)
        published += 1
        if published == corrections:
            self._await_stored(self._publisher_of(key))
            end()

    Merging._publish = counted  # type: ignore[method-assign]


def end_before_notes_are_forgotten() -> None:
    def ended(self: SplitBrain) -> Facts:
        end()

    SplitBrain.ended = ended  # type: ignore[method-assign]


def main(endpoint: str, folder: str, policy: str) -> None:
    wanted = Path(folder) / "end"
    if wanted.exists():
        place = wanted.read_text()
        wanted.unlink()
        if place == "all":
            end_before_notes_are_forgotten()
        else:
            end_behind(int(place))
    session = open_session(
        {
            "mode": "client",
            "scouting": {"multicast": {"enabled": False}},
            "connect": {"endpoints": [endpoint]},
            "timestamping": {"enabled": True},
        }
    )
    options = CacheOptions(
        align=True,
        aligner=ALIGNER,
        state_dir=Path(folder),
        split_brain=SplitBrainOptions(MergePolicy(policy), 1),
    )
    url = f"sqlite:///{folder}/samples.db"
    with declare_reliability_cache(
        session, "a/**", options=options, backend="sql", backend_options={"url": url}
    ):
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
