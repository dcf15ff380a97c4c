"""Does whoever asks a publisher's own cache while it closes wait for an answer in vain?"""

from __future__ import annotations

import gc
import weakref

from durable_cache import declare_reliable_publisher
from durable_cache.testing.network import LocalNetwork


class Asked:
    """A question; Zenoh tells its asker that it is over once nobody holds it."""


def test_a_question_that_comes_while_a_publisher_closes_is_over_at_once() -> None:
    with LocalNetwork() as network:
        publisher = declare_reliable_publisher(network.client(), "lot/1")
        publisher.put(b"x")
        publisher.close()
        late = Asked()  # Zenoh's thread had it in hand when the queryable was undeclared
        held = weakref.ref(late)
        publisher._asked(late)  # type: ignore[arg-type]
        del late
        gc.collect()
        assert held() is None, "the publisher keeps it, and will never answer"
