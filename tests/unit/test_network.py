"""What tests of networks are told, and which ports they get."""

from __future__ import annotations

import socket

import pytest

from durable_cache.testing.network import free_port, wait_until


def test_what_there_was_instead_is_in_the_message() -> None:
    came = [1, 2]
    with pytest.raises(AssertionError, match=r"the third did not .* instead: \[1, 2\]"):
        wait_until(lambda: len(came) == 3, 0, "the third", instead=lambda: came)
    wait_until(lambda: True, 0, instead=lambda: pytest.fail("it came about"))


def test_a_port_that_was_given_out_is_held_until_it_is_used() -> None:
    port = free_port()
    with socket.socket(type=socket.SOCK_DGRAM) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))  # as another test run's `free_port` does
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
