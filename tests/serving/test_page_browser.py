"""The page in a real Chromium, with its keyboard, both themes, a phone, and axe's check of accessibility.

Needs Debian's chromium (or CHROMIUM naming another), `pip install playwright`, and npm for axe-core, which is put into
a cache folder (TOOLSCOUT_TEST_CACHE) and never into the project. What is absent is skipped with its reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.page_app import SCRIPT, SPEC, TOKEN, Coded, app, opened
from toolscout import Tool
from toolscout.core.permissions import Principal, new_key

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; run: pip install playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
CACHE = Path(os.environ.get("TOOLSCOUT_TEST_CACHE", Path.home() / ".cache" / "toolscout-tests"))
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium; run: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def axe() -> str:
    path = CACHE / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("axe-core is not there and npm, which fetches it, is not installed")
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(CACHE), "--no-audit", "--no-fund", "axe-core@4"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"axe-core cannot be fetched: {done.stderr[-200:]}")
    return path.read_text()


def says(page: Any, where: str, text: str) -> None:
    """Wait for a text. Not by wait_for_function: that evaluates a string, which the page's policy forbids."""
    sync_api.expect(page.locator(where)).to_contain_text(text)


class Server:
    """The page on a port of its own, in a thread."""

    def __init__(self, folder: Path) -> None:
        import uvicorn

        self.scout = opened(folder)
        self.coded = opened(folder, Coded())
        results = folder / "results"
        results.mkdir()
        row = {"dataset": "toys", "split": "test", "retriever": "bm25", "metrics": {"recall@5": 0.5}}
        rows = [row, row | {"retriever": "hybrid", "metrics": {"recall@5": 0.755}}]
        (results / "toys.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (results / "toys.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle cx="4" cy="4" r="4"/></svg>'
        )
        made = app(self.scout, {"coded": self.coded}, results)
        self._server = uvicorn.Server(uvicorn.Config(made, port=0, log_level="error", ws="none"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        self.opened = f"{self.url}#token={TOKEN}"  # as `toolscout serve` prints it

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.scout.close()
        self.coded.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


class Tab:
    """A tab that remembers whatever went wrong in it."""

    def __init__(self, chromium: Any, url: str, **options: Any) -> None:
        self.context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console", lambda told: self.wrong.append(told.text) if told.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("#welcome p, .hit, #key[open]", state="attached")

    def find(self, request: str) -> None:
        self.page.fill("#request", request)
        with self.page.expect_response("**/page/search"):
            self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#answers:not(.busy) .answer")

    def focused(self) -> str:
        return str(self.page.evaluate("document.activeElement.textContent || document.activeElement.id"))


@pytest.fixture
def tab(chromium: Any, server: Server) -> Iterator[Tab]:
    tab = Tab(chromium, server.opened)
    yield tab
    tab.context.close()
    assert tab.wrong == []
    assert {url.split("/")[2] for url in tab.asked if not url.startswith("blob:")} == {server.url.split("/")[2]}


def test_typing_shows_tools_why_and_savings(tab: Tab) -> None:
    tab.page.locator("#request").press_sequentially("send an email", delay=20)
    tab.page.wait_for_selector(".hit")
    assert tab.page.text_content(".hit .name") == "Send email"
    says(tab.page, ".hit .why >> nth=0", "email")  # once the last letter was searched
    assert tab.page.locator(".hit mark").first.text_content() == "Sends"
    tab.page.wait_for_selector(".saved b")
    assert "% saved" in tab.page.text_content(".saved")
    assert json.loads(tab.page.text_content(".json"))[0]["function"]["name"] == "mail__send_email"
    tab.page.click("text=Anthropic")
    assert "input_schema" in json.loads(tab.page.text_content(".json"))[0]
    assert tab.page.locator("[role=meter]").count() == 1
    tab.page.reload()
    tab.page.wait_for_selector(".hit")
    assert tab.page.input_value("#request") == "send an email"


def test_values_stand_beside_thresholds_and_shares_beside_tools(tab: Tab) -> None:
    tab.find("send an email")
    assert tab.page.text_content(".gauge") == "Catalogue fit1.00 ≥ 0.19"
    assert tab.page.get_attribute("[role=meter]", "aria-valuetext") == "1.00, not below the threshold of 0.19"
    assert tab.page.locator(".hit .share").first.text_content() == "100 % of best"
    tab.find("use send_email for the lion")
    says(tab.page, ".hit .share >> nth=0", "named")
    says(tab.page, ".hit .share >> nth=1", "% of best")


def test_the_keyboard_does_everything(tab: Tab, server: Server) -> None:
    page = tab.page
    assert page.evaluate("document.activeElement.id") == "request"
    page.keyboard.press("?")
    assert page.is_visible("#keys")
    page.keyboard.press("Escape")
    assert not page.is_visible("#keys")
    tab.find("send an email")
    page.keyboard.press("ArrowDown")
    first = tab.focused()
    page.keyboard.press("ArrowDown")
    assert tab.focused() != first
    page.keyboard.press("ArrowUp")
    assert tab.focused() == first
    page.keyboard.press("Enter")
    assert page.is_visible(".hit.open .params")
    with page.expect_response("**/page/feedback"):
        page.keyboard.press("y")
    page.wait_for_selector(".hit .for[aria-pressed=true]")
    with page.expect_response("**/page/feedback"):
        page.keyboard.press("n")
    page.wait_for_selector(".hit .against[aria-pressed=true]")
    given = [example for _, example in server.scout.store.feedback()]
    assert [len(example.used) for example in given] == [1, 0]
    assert given[0].used == given[1].rejected
    page.keyboard.press("w")
    assert page.get_attribute(".tabs [aria-selected=true]", "data-format") == "openai-responses"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "request"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("2")
    page.wait_for_selector("#tools .hit")
    page.keyboard.press("3")
    page.wait_for_selector("#rows table")
    page.keyboard.press("/")
    assert page.is_visible("#request")


def test_two_retrievers_and_the_code_tree(tab: Tab) -> None:
    page = tab.page
    tab.find("lion")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("c")
    page.wait_for_selector(".two .answer:nth-child(2)")
    assert page.locator(".answer").count() == 2
    assert "#1" in page.text_content(".hit .other")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[...document.querySelectorAll('.answer')].findIndex(a => a.contains(document.activeElement))")
    page.keyboard.press("Enter")
    assert page.locator(".answer:nth-child(2) .path li").count() == 2
    assert "this tool" in page.text_content(".path")


def test_nothing_fits_is_said(tab: Tab) -> None:
    tab.find("qwertyuiop")
    assert tab.page.text_content(".verdict h2") == "Nothing here fits"
    assert tab.page.text_content(".json") == "[]"


def test_only_one_namespace(tab: Tab) -> None:
    tab.find("lion")
    assert tab.page.locator(".hit").count() == 2
    with tab.page.expect_response("**/page/search"):
        tab.page.fill("#namespace", "zoo")
    sync_api.expect(tab.page.locator("#answers .hit")).to_have_count(1)
    tab.page.reload()
    sync_api.expect(tab.page.locator("#answers .hit")).to_have_count(1)
    assert tab.page.input_value("#namespace") == "zoo"
    tab.page.fill("#namespace", "")
    sync_api.expect(tab.page.locator("#answers .hit")).to_have_count(2)


def test_a_namespace_is_completed_or_refused_in_words(tab: Tab) -> None:
    page = tab.page
    tab.find("lion")
    page.fill("#namespace", "VAU")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#answers .hit")).to_have_count(1)
    assert page.input_value("#namespace") == "vault"
    page.fill("#namespace", "a")
    page.keyboard.press("Enter")
    says(page, "#trouble", "3 namespaces with “a”")
    page.click("nav >> text=Catalogue")
    page.fill("#tools-namespace", "nowhere")
    page.keyboard.press("Enter")
    says(page, "#tools-trouble", "no namespace with “nowhere”")
    page.fill("#tools-namespace", "zoo")
    says(page, "#tools-title", "1 of 1")
    assert not page.is_visible("#tools-trouble")


def test_thousands_of_namespaces_and_many_sources(chromium: Any, server: Server) -> None:
    server.scout.add([Tool(f"space{number}", "ping", "Pings a lion.") for number in range(10_000)])
    tab = Tab(chromium, server.opened)
    tab.find("lion")
    tab.page.fill("#namespace", "space99")
    sync_api.expect(tab.page.locator("#answers .hit")).to_have_count(1)
    tab.page.click("nav >> text=Catalogue")
    says(tab.page, "#tools-title", "50 of 10,005")
    assert tab.page.locator("*").count() < 2_000
    for number in range(40):
        server.scout.add([Tool(f"more{number}", "ping", "Pings.")], label=f"source {number}")
    tab.page.reload()
    says(tab.page, "#sources", "source 39")
    assert tab.page.locator("#sources").bounding_box()["height"] < 600  # the tools below stay within reach
    tab.context.close()
    assert tab.wrong == []


def test_scripts_in_names_sources_and_errors_are_shown_as_text(tab: Tab, server: Server) -> None:
    page = tab.page
    server.scout.add(
        [
            Tool(
                f"space{SCRIPT}",
                f"name{SCRIPT}",
                input_schema={"type": "object", "properties": {SCRIPT: {"type": SCRIPT}}},
            )
        ],
        label=f"source{SCRIPT}",
    )
    page.reload()
    tab.find("name space onerror document title")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "<img src=x" in page.text_content(".hit .name")
    page.click("nav >> text=Catalogue")
    says(page, "#sources", f"source{SCRIPT}")
    page.fill("#tools-find", "onerror")
    says(page, "#tools", "<script>")
    page.fill("#tools-namespace", SCRIPT)
    page.keyboard.press("Enter")
    page.set_input_files("#file", {"name": f"{SCRIPT}.json", "mimeType": "application/json", "buffer": b"{"})
    page.wait_for_selector("#add-trouble:not([hidden])")
    page.evaluate(
        f"location.hash = '#find?' + new URLSearchParams({{q: {json.dumps(SCRIPT)}, request: {json.dumps(SCRIPT)}}})"
    )
    page.reload()
    page.wait_for_selector("#request")
    assert page.locator("main img[src=x], main script, dialog script").count() == 0
    assert "owned" not in page.title()
    assert all("422" in told for told in tab.wrong)  # Chromium notes the answer that is an error
    tab.wrong.clear()


def test_scripts_in_a_catalogue_are_shown_as_text(tab: Tab) -> None:
    tab.find("feed lion")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    assert "<script>" in tab.page.text_content(".hit .name")
    assert "<img src=x" in tab.page.text_content(".hit .params")
    assert tab.page.locator("main img[src=x], main script").count() == 0
    assert tab.page.title() == "toolscout"


def test_adding_by_file_and_by_drop(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    page.click("nav >> text=Catalogue")
    page.wait_for_selector("#tools .hit")
    spec = tmp_path / "tea.yaml"
    spec.write_text(SPEC)
    page.set_input_files("#file", str(spec))
    says(page, "#added", "1 added")
    says(page, "#tools", "brew_tea")
    assert "tea.yaml" in page.text_content("#sources")
    other = SPEC.replace("brew_tea", "pour_tea").replace("/pots", "/cups")
    drop = """([name, text]) => {
        const data = new DataTransfer();
        data.items.add(new File([text], name));
        for (const kind of ["dragover", "drop"])
            document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(drop, ["cups.yaml", other])
    says(page, "#tools", "pour_tea")
    page.keyboard.press("Escape")
    page.click("nav >> text=Find")
    tab.find("brew a pot of tea")
    assert page.text_content(".hit .space")


def test_errors_are_said_in_words(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    page.click("nav >> text=Catalogue")
    page.wait_for_selector("#add:not([hidden])")
    page.set_input_files("#file", {"name": "bad.json", "mimeType": "application/json", "buffer": b"{"})
    page.wait_for_selector("#add-trouble:not([hidden])")
    assert "bad.json" in page.text_content("#add-trouble")
    page.wait_for_selector("#sources .bad")
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(20_000_001)
    page.set_input_files("#file", str(big))
    says(page, "#add-trouble", "larger")
    # Chromium itself notes answers that are errors; nothing else may be there.
    assert all("422" in told for told in tab.wrong)
    tab.wrong.clear()


def test_a_server_that_is_gone(tab: Tab) -> None:
    tab.context.set_offline(True)
    tab.page.fill("#request", "email")
    tab.page.wait_for_selector("#trouble:not([hidden])")
    assert "does not answer" in tab.page.text_content("#trouble")
    tab.context.set_offline(False)
    tab.find("email")
    assert not tab.page.is_visible("#trouble")
    tab.wrong.clear()  # Chromium notes that it is offline


def test_a_key_is_asked_for(chromium: Any, server: Server) -> None:
    server.scout.store.put_principal(Principal("ann", allow=("mail/*",)))
    token, key = new_key("ann")
    server.scout.store.add_key(key)
    tab = Tab(chromium, server.opened)
    tab.page.fill("#key-text", "ts_wrong")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#key-trouble:not([hidden])")
    tab.page.fill("#key-text", token)
    tab.page.keyboard.press("Enter")
    says(tab.page, "#about", "2 tools")
    tab.find("lion email")
    assert set(tab.page.locator(".hit .space").all_text_contents()) == {"mail/send_email", "mail"}
    assert not tab.page.is_visible("nav >> text=Results")
    tab.context.close()


def test_results(tab: Tab) -> None:
    page = tab.page
    page.click("nav >> text=Results")
    page.wait_for_selector("#plots img")
    assert page.evaluate("document.querySelector('#plots img').decode().then(() => true)")
    page.click("th >> text=R@5")
    assert page.locator("#rows tbody tr").first.text_content() == "toystesthybrid75.5"
    page.fill("#rows-find", "bm25")
    sync_api.expect(page.locator("#rows tbody tr")).to_have_count(1)
    page.click("#plots button")
    assert page.is_visible("#plot")


def test_the_live_view_follows_what_happens(tab: Tab) -> None:
    page = tab.page
    tab.find("email the lion")
    with page.expect_response("**/page/live**"):
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.keyboard.press("4")
    says(page, "#live-about", "5 tools · figures since the server started")
    says(page, "#figures", "use (1)")
    says(page, "#live-about", "figures of the last 2.")  # it asks again by itself
    says(page, "#figures .cards", "requests/s")
    says(page, "#figures table", "page")
    page.click("nav >> text=Find")
    page.wait_for_timeout(200)  # what was asked for is answered
    asked = sum("/page/live" in url for url in tab.asked)
    page.wait_for_timeout(2500)
    assert sum("/page/live" in url for url in tab.asked) == asked  # nobody looks


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_accessible_in_both_themes_and_on_a_phone(
    chromium: Any, server: Server, axe: str, theme: str, width: int
) -> None:
    tab = Tab(chromium, server.opened, color_scheme=theme, viewport={"width": width, "height": 740})
    page = tab.page

    def check() -> None:
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.evaluate(axe)
        found = page.evaluate("axe.run()")["violations"]
        assert [one for one in found if one["impact"] in SERIOUS] == [], json.dumps(found)[:2000]

    check()
    tab.find("email the lion")
    page.wait_for_selector(".saved b")
    page.locator(".hit .name").first.click()
    page.select_option("#second", "coded")
    page.wait_for_selector(".two")
    page.locator(".hit .name").last.click()
    check()
    page.evaluate("document.getElementById('keys').showModal()")
    check()
    page.keyboard.press("Escape")
    for view, drawn in {"catalogue": "#tools .hit", "results": "#plots img", "live": "#figures table"}.items():
        page.evaluate(f"location.hash = '#{view}'")
        page.wait_for_selector(drawn)
        check()
    tab.context.close()
    assert tab.wrong == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessible_without_the_token(chromium: Any, server: Server, axe: str, theme: str) -> None:
    tab = Tab(chromium, f"{server.url}#catalogue", color_scheme=theme, viewport={"width": 360, "height": 740})
    tab.page.wait_for_selector("#add-locked:not([hidden])")
    tab.page.evaluate(axe)
    found = tab.page.evaluate("axe.run()")["violations"]
    assert [one for one in found if one["impact"] in SERIOUS] == [], json.dumps(found)[:2000]
    tab.context.close()


def test_the_catalogue_is_changed_with_the_token_alone(chromium: Any, server: Server) -> None:
    tab = Tab(chromium, f"{server.url}#catalogue")
    page = tab.page
    page.wait_for_selector("#add-locked:not([hidden])")
    assert not page.is_visible("#add")
    assert not page.is_visible("nav >> text=Results")
    page.click("#token-open")
    page.fill("#key-text", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#add:not([hidden])")
    assert not page.is_visible("#add-locked")
    tab.context.close()
    opened = Tab(chromium, server.opened)
    opened.page.wait_for_selector("nav >> text=Results")
    assert TOKEN not in opened.page.url
    assert not any(TOKEN in url for url in opened.asked)
    opened.context.close()
    assert tab.wrong == opened.wrong == []


def test_the_theme_is_chosen_and_kept(tab: Tab) -> None:
    page = tab.page
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "light"
    page.click("#theme")
    assert page.evaluate(paper) != light
    page.reload()
    assert page.get_attribute("html", "data-theme") == "dark"
