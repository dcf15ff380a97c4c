"""May a publisher's history be read while puts go on?"""

from __future__ import annotations

import pytest

from durable_cache.model.sample import Kind, SourceId
from durable_cache.model.selection import ANY_SN, Selection, SnBounds
from durable_cache.protocol.publisher.events import Form, Send
from durable_cache.protocol.publisher.history import History

FORM = Form("t/a", Kind.PUT, "zenoh/bytes", "ab12", 0)
DEPTH = 10


class Putting:
    """A stamp while whose number is read another sample is put, as another thread may."""

    def __init__(self, history: History) -> None:
        self.history, self.sn = history, DEPTH

    def __str__(self) -> str:
        self.history.add(sent(self.sn, 1), None)
        self.sn += 1
        return "1"


def sent(sn: int, stamp: object) -> Send:
    return Send(FORM, SourceId("ab12", 1), 7, sn, b"value", None, stamp, 0, None)


@pytest.mark.parametrize("asked", [ANY_SN, SnBounds(3, 5)])
def test_what_is_put_meanwhile_disturbs_no_reader(asked: SnBounds) -> None:
    history = History(DEPTH)
    putting = Putting(history)
    for sn in range(DEPTH):
        history.add(sent(sn, putting), None)
    read = history.read(Selection(sns=asked), DEPTH, None)[0]
    assert [sample.sn for sample in read] == [sn for sn in range(DEPTH) if asked.holds(sn)]
    assert putting.sn > DEPTH
    assert len(history.samples()) == DEPTH
