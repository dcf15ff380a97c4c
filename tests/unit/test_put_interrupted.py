"""Is it said what is known of the samples that were published before Ctrl-C?"""

from __future__ import annotations

import argparse
from typing import cast

import pytest

from durable_cache import Receipt, ReliablePublisher
from durable_cache.service.verbs import put


class _Receipt:
    done = True

    def wait(self, _timeout_seconds: float) -> bool:
        raise KeyboardInterrupt


class _Publisher:
    def __init__(self, before: int) -> None:
        self._left = before

    def put(self, _value: bytes, *, attachment: None) -> _Receipt:
        assert attachment is None
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        receipt = _Receipt()
        receipt.done = self._left > 0  # the last one waits
        return receipt


@pytest.mark.parametrize(("before", "lines"), [(3, 9), (3, 3)], ids=["putting", "waiting"])
def test_what_is_known_is_said_when_it_is_interrupted(
    before: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(put, "_values", lambda _: iter([b"x"] * lines))
    publisher = cast("ReliablePublisher[Receipt]", _Publisher(before))
    arguments = argparse.Namespace(value="x", attachment=None, timeout=5.0)
    with pytest.raises(KeyboardInterrupt):
        put._publish(publisher, arguments)
    assert capsys.readouterr().err == "interrupted: 3 samples published, 2 acknowledged\n"
