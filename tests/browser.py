"""What does a page show? A headless Chromium, driven through ChromeDriver. Without it, such tests are skipped."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import LIMIT_S, free_port, wait_until

PROGRAMS: Final = ("chromium", "chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason="needs Debian's packages chromium and chromium-driver"
)
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"),
    *("--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
)


class Browser:
    """One window."""

    def __init__(self, driver: str, *, width: int, height: int, dark: bool) -> None:
        self._driver = driver
        flags = [*_FLAGS, f"--window-size={width},{height}", *(["--force-dark-mode"] if dark else [])]
        wanted = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._tell("POST", "goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})

    def open(self, url: str) -> None:
        """Go to an address."""
        self._tell("POST", "url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script returns."""
        return self._tell("POST", "execute/sync", {"script": script, "args": []})

    def text(self, selector: str) -> str:
        """What the first element of a CSS selector shows."""
        return str(self.run(f"return document.querySelector({json.dumps(selector)}).innerText"))

    def complaints(self) -> list[str]:
        """What the console says: errors of scripts, and what the page's policy has refused."""
        return [entry["message"] for entry in self._tell("POST", "se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        """A picture of the window, as PNG."""
        path.write_bytes(base64.b64decode(self._tell("GET", "screenshot")))

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", f"/session/{self._session}")

    def _tell(self, method: str, what: str, value: Any = None) -> Any:
        return self._ask(method, f"/session/{self._session}/{what}", value)

    def _ask(self, method: str, path: str, value: Any = None) -> Any:
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self._driver + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)["value"]


@contextlib.contextmanager
def browser(*, width: int = 1120, height: int = 1000, dark: bool = False) -> Iterator[Browser]:
    """A window that ends with the block."""
    port = free_port()
    command = ["chromedriver", f"--port={port}", "--silent"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            wait_until(lambda: _listens(port), "ChromeDriver listens")
            window = Browser(f"http://127.0.0.1:{port}", width=width, height=height, dark=dark)
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
