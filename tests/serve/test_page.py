"""The page at / in Debian's Chromium."""

import json
import os
import shutil

import pytest
from server import ROOT, needs_model

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = [needs_model, pytest.mark.skipif(not CHROMIUM, reason="no chromium (scripts/install-deps test gets it)")]


@pytest.fixture
def page(server):
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        # Playwright's own waits are strings to evaluate, which the page's policy forbids.
        page = browser.new_page(viewport={"width": 1100, "height": 720}, bypass_csp=True)
        page.faults, page.asked = [], []
        page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(server.url + "/")
        yield page
        assert page.faults == []
        assert all(url.startswith(server.url + "/") for url in page.asked)  # nothing from elsewhere
        browser.close()


def say(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.wait_for_function("document.querySelector('#send').textContent === 'Send' && document.querySelector('#timeline svg')", timeout=60000)


def test_a_conversation_with_thinking_tools_and_the_engine(page):
    page.wait_for_function("document.querySelector('#model').textContent !== ''")
    assert page.inner_text("#numerics").startswith("numerics ")
    say(page, "What is 17 + 25?")
    assert page.inner_text(".assistant .content") == "42"
    assert "42" in page.inner_text(".assistant .thinking")
    assert "queue + prompt" in page.text_content("#timeline svg") and "generated" in page.inner_text("#timeline")
    page.click("#clear")
    page.evaluate("document.querySelector('details').open = true")
    page.fill("#tools", json.dumps(json.loads((ROOT / "docs/examples/tools.json").read_text())))
    say(page, "What is the weather in Krakow?")
    assert "get_current_weather" in page.inner_text(".call")
    page.fill(".call input", "sunny, 12C")
    page.press(".call input", "Enter")
    page.wait_for_function("document.querySelectorAll('.assistant').length === 2 && document.querySelector('#send').textContent === 'Send'", timeout=60000)
    assert "12C" in page.locator(".assistant .content").last.inner_text()
    page.wait_for_function("!document.querySelector('#hitstext').textContent.startsWith('0.0')", timeout=10000)
    assert "generated tokens" in page.inner_text("#engine")
    # The conversation's rows stay in the tree when nothing runs, with a state to go on from.
    rows = "[...document.querySelectorAll('#%s td:last-child')].map(cell => Number(cell.textContent.replaceAll(',', '')))"
    page.wait_for_function("(rows => rows[2] > 0 && rows[0] === 0)(" + rows % "owners" + ")", timeout=10000)
    assert page.evaluate(rows % "tree")[2] > 0
    if folder := os.environ.get("SCREENSHOTS"):
        page.set_viewport_size({"width": 1100, "height": 1040})
        page.screenshot(path=os.path.join(folder, "page.png"))


def test_what_a_model_writes_is_text_not_markup(page):
    page.evaluate("""() => {
        const turn = element($('log'), 'div', 'turn', '<img src=x onerror="document.title=1">');
        return turn;
    }""")
    assert page.locator("#log img").count() == 0


def test_stop_ends_the_answer(page):
    page.fill("#temperature", "2")
    page.fill("#text", "Tell me something.")
    page.route("**/v1/chat/completions", lambda route: route.continue_(
        post_data=json.dumps({**json.loads(route.request.post_data), "ignore_eos": True, "max_tokens": 7000})))
    page.press("#text", "Enter")
    page.wait_for_selector(".assistant .thinking")
    page.dispatch_event("#send", "click")  # at once: click() waits for frames, which a busy machine draws rarely
    page.wait_for_selector(".assistant .error")
    assert page.inner_text(".assistant .error") == "stopped"
    page.unroute("**/v1/chat/completions")


def test_errors_are_shown(page):
    page.fill("#tools", "[{}]") if page.evaluate("document.querySelector('details').open = true") else None
    page.fill("#text", "Hi")
    page.press("#text", "Enter")
    page.wait_for_selector(".assistant .error")
    assert "function.name" in page.inner_text(".assistant .error")
    page.faults.clear()  # Chromium reports the 400 on its console
