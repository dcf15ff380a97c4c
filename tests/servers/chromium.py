"""A headless Chromium that a test types into and looks at, over its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from durable_cache.testing.services import require

__all__ = ["Chromium", "find_chromium"]

_SECONDS = 30.0


def find_chromium() -> str:
    """Return where the browser is; skips the test where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        require("chromium", "it is not installed")
    return found


class Chromium:
    """One tab; a context manager. What a page throws or logs as an error is in `errors`."""

    def __init__(self, directory: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [
            *(find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", f"--user-data-dir={directory}", "--no-first-run"),
            *("--hide-scrollbars", "--remote-debugging-pipe", "about:blank"),
        ]
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "chromium", *command],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._ids = 0
        self._session = ""
        self.errors: list[str] = []
        pages = [
            target
            for target in self.call("Target.getTargets")["targetInfos"]
            if target["type"] == "page"
        ]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call the browser and return its answer."""
        self._ids += 1
        message: dict[str, Any] = {"id": self._ids, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._ids:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._in], [], [], left)[0]:
                read = os.read(self._in, 1 << 20)
                assert read, "the browser is gone"
                self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(str(parameters["entry"]))
            case "Page.javascriptDialogOpening":
                self.errors.append(f"a dialog: {parameters['message']}")
        return message

    def open(self, url: str, width: int, height: int) -> None:
        """Show a page in a window of that size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {url!r} && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return what an expression is in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true in the page; returns it."""
        deadline = time.monotonic() + _SECONDS
        while not (found := self.value(expression)):
            text = self.value("document.body?.innerText")
            assert time.monotonic() < deadline, f"never: {expression}: {self.errors}: {text}"
            time.sleep(0.05)
        return found

    def press(self, *keys: str) -> None:
        """Press keys, one after the other: characters, or names as ``Enter``."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        for key in keys:
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            code = codes.get(key, ord(key.upper()) if key.isalnum() and len(key) == 1 else 0)
            named = {"key": key, "text": text, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", **named)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path) -> None:
        """Keep what is seen as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._out)
        os.close(self._in)
