"""Does the status page work in a browser: live, from the keyboard, small and large, and safe?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zenoh

from durable_cache import open_session
from durable_cache.testing.network import wait_until
from tests.acceptance.test_service import publish
from tests.servers.chromium import Chromium
from tests.servers.zenoh_sources import Numbered

HOSTILE = "lab/<img src=x onerror=alert(1)>"
TABLE = "document.querySelector('#rows').innerText"


class Shown(NamedTuple):
    """A running service and its page in a browser."""

    browser: Chromium
    url: str
    endpoint: str


@pytest.fixture
def shown(
    start: Callable[..., Any], free_port: Callable[[], int], tmp_path: Path
) -> Iterator[Shown]:
    with Chromium(tmp_path / "profile") as browser:
        endpoint, port = f"tcp/127.0.0.1:{free_port()}", free_port()
        (tmp_path / "page.json5").write_text(
            """{ scouting: { multicast: { enabled: false } }, plugins: { durable_cache: {
            volumes: { quick: { backend: "memory" } },
            storages: { lab: { key_expr: "lab/**", acknowledge: "memory",
            recovery: { gap_timeout_seconds: 0.3, fetch_timeout_seconds: 0.2 } } } } } }"""
        )
        http = f"127.0.0.1:{port}"
        start("serve", "-c", "page.json5", "-l", endpoint, "--http", http).wait_for(
            "try from another terminal"
        )
        publish(endpoint, "lab/a", [b"one", b"two"])
        publish(endpoint, HOSTILE, [b"<script>alert(2)</script>"])
        yield Shown(browser, f"http://{http}/", endpoint)


@pytest.mark.parametrize("width", [360, 1280, 1920])
def test_everything_is_seen_at_every_width_and_nothing_runs_out_of_it(
    shown: Shown, width: int
) -> None:
    browser = shown.browser
    browser.open(shown.url, width, 900)
    browser.until(f"{TABLE}.includes('lab/a')")
    assert browser.value("document.querySelector('#storages').innerText").startswith("● lab: up")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.errors == []


def test_it_is_live_and_says_when_the_service_is_gone(shown: Shown) -> None:
    browser = shown.browser
    browser.open(shown.url, 1280, 900)
    browser.until(f"{TABLE}.includes('two')")
    publish(shown.endpoint, "lab/a", [b"three"])
    browser.until(f"{TABLE}.includes('three')")
    assert browser.errors == []
    browser.call("Network.enable")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.call("Network.emulateNetworkConditions", offline=True, **offline)
    browser.until("!document.querySelector('#trouble').hidden")
    keys = "[...document.querySelectorAll('td button')]"
    browser.value(f"{keys}.find((one) => one.innerText === 'lab/a').click()")
    assert browser.value(TABLE) == "asking …", "no answer is not an empty one"
    browser.call("Network.emulateNetworkConditions", offline=False, **offline)
    browser.until("document.querySelector('#trouble').hidden")
    browser.until(f"{TABLE}.includes('three')")


def test_names_and_payloads_are_never_markup(shown: Shown) -> None:
    browser = shown.browser
    publish(shown.endpoint, "lab/\u202egnp", ["\u202e\x1b[2J".encode()])
    browser.open(shown.url, 1280, 900)
    browser.until(f"{TABLE}.includes({HOSTILE!r})")
    assert browser.value(f"{TABLE}.includes('<script>alert(2)</script>')")
    assert browser.value(f"{TABLE}.includes('lab/\\\\u202egnp')"), (
        "what turns a line is written out"
    )
    assert browser.value("document.querySelectorAll('#rows img, #rows script').length") == 0
    browser.value("[...document.querySelectorAll('td button')].at(0).click()")
    browser.until(f"{TABLE}.includes('alert(2)')")
    browser.value("document.querySelector('td button').click()")
    browser.until("document.querySelector('#sample').open")
    whole = browser.until("document.querySelector('#sample-payload').textContent")
    assert whole == "<script>alert(2)</script>"
    assert browser.errors == []


def test_search_drill_down_and_back_need_no_mouse(shown: Shown) -> None:
    browser = shown.browser
    browser.open(shown.url, 1280, 900)
    browser.until(f"{TABLE}.includes('lab/a')")
    browser.press("/", *"lab/a", "Enter")
    browser.until("document.querySelector('#where').textContent.includes('in lab/a')")
    browser.until(f"{TABLE}.includes('lab/a') && !{TABLE}.includes('img')")
    browser.value("document.querySelector('#rows').focus()")
    for _ in range(30):
        browser.press("Tab")
        if browser.value("document.activeElement.textContent") == "lab/a":
            break
    browser.press("Enter")
    browser.until(f"{TABLE}.includes('one')")
    browser.value("document.querySelector('td button').focus()")
    browser.press("Enter")
    browser.until("document.querySelector('#sample-payload').textContent === 'two'")
    browser.press("Escape")
    browser.until("!document.querySelector('#sample').open")
    browser.press("Escape")
    browser.until("document.querySelector('#where').textContent.startsWith('keys')")
    assert browser.errors == []


def test_a_gap_and_its_loss_are_on_the_timeline_of_their_source(shown: Shown) -> None:
    session: zenoh.Session = open_session(
        {
            "mode": "client",
            "connect": {"endpoints": [shown.endpoint]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )
    browser = shown.browser
    try:
        source = Numbered(session, "lab/gappy")
        wait_until(lambda: source.publisher.matching_status.matching, what="matching")
        browser.open(shown.url, 1280, 900)
        timeline = "document.querySelector('#timeline')"
        browser.until(f"{timeline}.innerText.includes('lab')")  # it draws what it sees happen
        for sn in (0, 1, 5):
            source.put(sn)
        browser.until(f"{timeline}.innerText.includes({source.prefix!r})")
        browser.until(f"{timeline}.querySelectorAll('.bar-lost').length >= 2")
        browser.value("document.querySelector('#tab-losses').click()")
        browser.until(f"{TABLE}.includes({source.prefix!r})")
        browser.value("document.querySelector('#tab-sources').click()")
        browser.until(f"{TABLE}.includes('▲ 3')")
        assert browser.errors == []
    finally:
        session.close()  # type: ignore[no-untyped-call]
