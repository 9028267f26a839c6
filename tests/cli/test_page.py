"""`brand serve --http` and `brand top --web`: the page names what a training waits for, in a real browser."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from brand.node.serve.http import HttpPort, derived_token
from brand.testing.node import RunningServer, random_address, running_server
from brand.testing.storage import BlockedStorage
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.browser import NEEDS_BROWSER, Browser, browser
from tests.node.test_metrics import read
from tests.support import LIMIT_S, brand, running_brand, wait_until

pytestmark = pytest.mark.slow


def fetch(url: str, path: str) -> str:
    """What another path of a port says, whose page has this address."""
    with urllib.request.urlopen(url.replace("/?", f"{path}?"), timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


@contextmanager
def training(loader: BrandLoader) -> Iterator[None]:
    """A loop in another thread, until the end of its epoch."""
    thread = threading.Thread(target=lambda: [None for _ in loader])
    thread.start()
    try:
        yield
    finally:
        thread.join()


def first_line(process: subprocess.Popen[bytes]) -> str:
    """The first line of its output."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


# -- the verbs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [None, "a secret"])
def test_a_server_with_a_port(own_photos_set: Path, secret: str | None) -> None:
    """It prints the address of the page, which is on this machine only, and ends with the server."""
    environment = {} if secret is None else {"BRAND_TOKEN": secret}
    address = random_address()
    with running_brand(
        "serve", own_photos_set, "--http", "0", "--address", address, environment=environment
    ) as process:
        assert first_line(process) == address
        assert process.stderr is not None
        lines = [process.stderr.readline().decode().strip() for _ in range(3)]
        found = re.fullmatch(r"look at it: (http://127\.0\.0\.1:\d+/\?token=(\w{32}))", lines[2])
        assert found is not None
        assert (found[2] == derived_token("a secret")) == (secret is not None)
        assert "brand_uptime_seconds" in fetch(found[1], "/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        with pytest.raises(urllib.error.URLError):
            fetch(found[1], "/metrics")


def test_top_shows_the_page_of_any_server(own_photos_set: Path) -> None:
    """Also of one that has no port of its own; until Ctrl-C, or until that server has ended."""
    with running_server(own_photos_set, memory=1.0) as server:
        loader = BrandLoader(BrandDataset(own_photos_set, fields=("index",), server=server.address), 8)
        assert sum(len(indices) for (indices,) in loader) == 31
        with running_brand("top", server.address, "--web") as process:
            url = first_line(process)
            assert read(fetch(url, "/metrics"))["brand_fetched_samples_total"][()] == 31
            assert "<script>" in fetch(url, "/")
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 0
        with running_brand("top", server.address, "--web") as process:
            first_line(process)
            server.node.stop()
            assert process.wait(LIMIT_S) == 0
            assert process.stderr is not None
            assert "the server has ended" in process.stderr.read().decode()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["serve", "{set}", "--http", "x"], "--http: an HTTP port is [HOST:]PORT"),
        (["serve", "{set}", "--token-file", "-"], "--token-file is for one of several nodes"),
        (["launch", "{set}", "--local", "2", "--http", "8585"], "one each, such as 8585{node}"),
        (["top", "unix:@nobody", "--http", "8585"], "--http goes with --web"),
        (["top", "unix:@nobody", "--web"], "no data server at unix:@nobody"),
    ],
)
def test_wrong_use(own_photos_set: Path, args: list[str], says: str) -> None:
    """Said with what to do."""
    answer = brand(*[arg.replace("{set}", str(own_photos_set)) for arg in args])
    assert answer.code != 0
    assert says in answer.err


# -- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def page() -> Iterator[Browser]:
    """A browser."""
    with browser() as window:
        yield window


def shown(port: HttpPort, page: Browser) -> None:
    """Open the page, and wait until it shows something."""
    page.open(port.url)
    wait_until(lambda: bool(page.run("return window.shown || 0")), "the page shows statistics")


@NEEDS_BROWSER
def test_the_page_names_what_a_training_waits_for(own_photos_set: Path, page: Browser) -> None:
    """While storage stands still; then the same of the step that has waited, with a strip for the rank."""
    with (
        BlockedStorage() as storage,
        running_server(own_photos_set, memory=1.0, storage=storage, page_cache=False) as server,
        closing(HttpPort("0", "token", server.node.facts)) as port,
    ):
        data_set = BrandDataset(own_photos_set, fields=("index",), server=server.address)
        with training(BrandLoader(data_set, 8)):
            shown(port, page)
            wait_until(lambda: "is waiting for storage" in page.text("#what"), "the page names the cause")
            assert page.text("#do").startswith("Reads from storage set the pace: more memory=")
            storage.release()
        wait_until(lambda: "waited" in page.text("#what"), "the page names the step")
        assert re.match(r"Step 0 waited .* for storage; \d+ % of the last", page.text("#what"))
        assert page.run("return document.querySelector('#what').dataset.cause") == "storage"
        assert page.run("return document.querySelectorAll('.rank canvas').length") == 1
        canvas = "const c = document.querySelector('.rank canvas');"
        row = page.run(f"{canvas} return [...c.getContext('2d').getImageData(0, 9, c.width, 1).data]")
        assert any(red > blue for red, blue in zip(row[::4], row[2::4], strict=True))  # the colour of storage
        assert page.text("#live") == "live"
        assert page.complaints() == []


@NEEDS_BROWSER
def test_the_page_shows_what_the_loop_has_taken(own_photos_set: Path, page: Browser) -> None:
    """In the middle of an epoch that has been read ahead: progress, bars, and the values under the pointer."""
    with (
        running_server(own_photos_set, memory=1.0) as server,
        closing(HttpPort("0", "token", server.node.facts)) as port,
    ):
        data_set = BrandDataset(own_photos_set, fields=("index",), server=server.address, job="lr-0.1")
        batches = iter(BrandLoader(data_set, 8))
        taken = sum(len(next(batches)[0]) for _ in range(2))
        shown(port, page)
        wait_until(lambda: page.text(".job .note").startswith(f"{taken} of 31 samples trained"), "the page knows")
        assert page.text(".job .note") == f"{taken} of 31 samples trained, {31 - taken} more read ahead"
        assert page.text(".job h2").split("\n")[0].startswith("lr-0.1, epoch 0")
        widths = page.run("return [...document.querySelectorAll('.job .bar i')].map(i => parseFloat(i.style.width))")
        assert widths == [pytest.approx(100 * part / 31, abs=0.01) for part in (taken, 31 - taken)]
        assert page.run("return document.querySelectorAll('.chart svg').length") == 4
        over = "const s = document.querySelector('.chart svg'), b = s.getBoundingClientRect();"
        at = "{clientX: b.right - 8, clientY: b.top + 20, bubbles: true}"
        page.run(f"{over} s.dispatchEvent(new PointerEvent('pointermove', {at}))")
        assert "lr-0.1: " in page.text("#tip")
        assert "s ago" in page.text("#tip")
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        assert page.complaints() == []


@pytest.mark.pages
@NEEDS_BROWSER
def test_the_page_says_when_the_server_is_gone(own_photos_set: Path, page: Browser) -> None:
    """It does not go on showing what was."""
    with running_server(own_photos_set, memory=1.0) as server:
        port = HttpPort("0", "token", server.node.facts)
        try:
            shown(port, page)
            server.node.stop()
            server.thread.join()
            wait_until(lambda: page.text("#live") == "the server has ended", "the page says so")
        finally:
            port.close()
        wait_until(lambda: page.text("#live") == "no connection", "the page says that, too")


@pytest.mark.pages
@NEEDS_BROWSER
def test_a_plain_loader_has_no_pace(own_photos_set: Path, page: Browser) -> None:
    """The page shows how far it has fetched, and says that this is not how far it has trained."""
    with (
        running_server(own_photos_set, memory=1.0) as server,
        closing(HttpPort("0", "token", server.node.facts)) as port,
    ):
        data_set = BrandDataset(own_photos_set, fields=("index",), server=server.address)
        batches = iter(DataLoader(data_set, 8, sampler=BrandSampler(data_set)))
        next(batches)
        shown(port, page)
        assert page.text(".job .note") == "8 of 31 samples fetched"
        assert "a plain DataLoader does not report it" in page.text(".job .figures")
        assert page.text("#ranks").startswith("No BrandLoader has reported yet")
        assert page.complaints() == []


@pytest.mark.pages
@NEEDS_BROWSER
def test_hostile_names_are_text(tmp_path: Path, own_photos_set: Path, page: Browser) -> None:
    """A run and a data set whose names are markup show as they are."""
    path = tmp_path / "<img src=x onerror=alert(1)>.brand"
    path.symlink_to(own_photos_set)
    with running_server(path, memory=1.0) as server, closing(HttpPort("0", "token", server.node.facts)) as port:
        data_set = BrandDataset(path, fields=("index",), server=server.address, job="<b>run</b>\u202e")
        with training(BrandLoader(data_set, 8)):
            pass
        shown(port, page)
        assert "<img src=x" in page.text("#name")
        assert page.run("return document.querySelectorAll('img, main b b').length") == 0
        assert page.complaints() == []


@pytest.mark.pages
@NEEDS_BROWSER
def test_without_the_token_the_page_is_not_there(own_photos_set: Path, page: Browser) -> None:
    """What a browser shows then says what is missing."""
    with running_server(own_photos_set) as server, closing(HttpPort("0", "token", server.node.facts)) as port:
        page.open(f"http://{port.address}/?token=wrong")
        assert "give the token" in page.text("body")


def test_the_fixture_of_a_server_is_real(own_photos_set: Path) -> None:
    """What the page shows is what `brand top` shows: the sentence comes from the server."""
    with running_server(own_photos_set, memory=1.0) as server:
        assert isinstance(server, RunningServer)
        answer = brand("top", server.address, "--once")
        assert "no BrandLoader has reported yet" in answer.out
