"""Makes docs/page-light.png and docs/page-dark.png from the page itself: python docs/make_page_pictures.py

Serves the bundled catalogue and photographs the page in Chromium: `apt-get install chromium` (or CHROMIUM names
another), `pip install playwright pillow`, and the extra "serve".
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from toolscout import Scout
from toolscout.serving.access import Access
from toolscout.serving.app import make_app
from toolscout.serving.limits import ServeOptions

DOCS = Path(__file__).parent
BUNDLED = DOCS.parent / "toolscout" / "bundled"
TOKEN = "ts_token-of-the-pictures"
SIZE = {"width": 1280, "height": 860}
PICTURES = (
    ("page-light.png", "light", "refund the last payment", ""),
    ("page-dark.png", "dark", "which pods keep crashing in kubernetes", "bm25"),
)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server over the bundled catalogue, with `hybrid` and, to compare with, `bm25`."""
    with Scout.open(folder / "tools.db") as scout:
        scout.add(BUNDLED)
        with Scout.open(folder / "tools.db", "bm25") as words:
            scout.warm_up()
            words.warm_up()
            options = ServeOptions(results=DOCS.parent / "results")
            app = make_app(scout, Access(scout, token=TOKEN), options, {"bm25": words})
            server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
            thread = threading.Thread(target=server.run)
            thread.start()
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
            server.should_exit = True
            thread.join()


def main() -> None:
    """Make both pictures."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no chromium; run: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, scheme, request, other in PICTURES:
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(f"{address}#token={TOKEN}")
            page.fill("#request", request)
            page.wait_for_selector(".saved b", state="attached")
            if other:
                page.select_option("#second", other)
                page.wait_for_selector("#answers.two .hit")
            page.wait_for_timeout(500)  # transitions
            page.screenshot(path=DOCS / name)
            page.close()
            Image.open(DOCS / name).quantize().save(DOCS / name, optimize=True)  # a third of the size
        browser.close()


if __name__ == "__main__":
    main()
