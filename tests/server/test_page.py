"""The page at `/` in a headless browser, against the real server with a tiny model."""

import re

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pilotfish import SamplingParams
from pilotfish.errors import InvalidInputError
from pilotfish.server.page import FILES, page_response, page_routes
from tests.server.running import KEY, eventually

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
QUESTION = "1 2 3 1 2 3 1 2 3"
TOKENS = 160
DESKTOP, PHONE = (1280, 800), (320, 568)


class Page:
    """The page as somebody with a keyboard meets it."""

    def __init__(self, browser, url):
        self.browser, self.url = browser, url

    def open(self, size=DESKTOP):
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.browser.get(self.url + "/")
        eventually(lambda: not self["key-row"].get_property("hidden"), "the question for a key")
        return self

    def enter(self, key=KEY):
        self.press(key, Keys.ENTER)
        eventually(lambda: self["key-row"].get_property("hidden"), "an accepted key")
        return self

    def __getitem__(self, name):
        return self.browser.find_element(By.ID, name)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def press(self, *keys):
        """Types where the focus is."""
        self.browser.switch_to.active_element.send_keys(*keys)

    def set(self, name, value):
        field = self[name]
        field.clear()
        field.send_keys(str(value))

    def coldest(self):
        self["temperature"].send_keys(Keys.HOME)
        assert self["temperature-value"].text == "0.0"

    def ask(self, text=QUESTION):
        self["message"].click()
        self.press(text, Keys.ENTER)

    def wait(self):
        eventually(lambda: self["send"].is_displayed() and not self.all("[aria-busy=true]"), "the end of an answer")

    def answer(self):
        return self.browser.execute_script("return [...document.querySelectorAll('.answer .words')].at(-1).textContent")

    def figures(self):
        return self.all(".answer .figures")[-1].text

    def width(self):
        return self.browser.execute_script("return document.documentElement.scrollWidth")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, server):
    yield Page(browser, server.url)
    # Nothing was blocked by the policy and nothing failed, but for what a test asked to be refused.
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    assert [one for one in complaints if not re.search(r"status of 4\d\d", one)] == []
    browser.get("about:blank")


def test_message_by_keyboard_streams_an_answer_with_its_drafts_tinted(page, alone):
    page.open().enter()
    page.coldest()
    page.set("max-tokens", TOKENS)
    page.browser.execute_script(
        "window.lengths = new Set(); new MutationObserver(() => window.lengths.add("
        "document.querySelector('.answer .words')?.textContent.length))"
        ".observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true})"
    )
    page.ask()
    assert page["message"].get_property("value") == ""
    page.wait()
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    (expected,) = alone.chat([{"role": "user", "content": QUESTION}], params)
    assert page.answer() == expected.outputs[0].text
    assert len(page.browser.execute_script("return [...window.lengths]")) > 3, "it came bit by bit"
    assert page.all(".answer .drafted"), "nothing was drafted"
    assert page.all(".answer .words > :not(.drafted)")
    tint = page.browser.execute_script(
        "return getComputedStyle(document.querySelector('.answer .drafted')).backgroundImage"
    )
    assert "gradient" in tint
    assert page.all("#wake .drafted")
    assert float(page["speed"].text) > 0
    assert float(page["acceptance"].text) > 1
    assert f"{TOKENS} tokens" in page.figures()
    heard = page.browser.execute_script("return document.getElementById('announcer').textContent")
    assert "".join(heard.split()) == "".join(page.answer().split())
    assert page.browser.switch_to.active_element == page["message"]


def test_speculation_off_by_keyboard_gives_the_identical_text(page):
    page.open().enter()
    page.set("seed", 7)
    page.set("max-tokens", TOKENS)
    page.ask()
    page.wait()
    drafted = page.answer()
    assert page.all(".answer .drafted"), "nothing was drafted"
    page["new-chat"].send_keys(Keys.ENTER)
    assert not page.all(".turn")
    assert page["welcome"].is_displayed()
    page["speculation"].send_keys(Keys.SPACE)
    assert not page["speculation"].is_selected()
    page.ask()
    page.wait()
    assert page.answer() == drafted
    assert not page.all(".answer .drafted")
    assert page["acceptance"].text == "1.00"
    assert "speculation off" in page.figures()
    assert "seed 7" in page.figures()


def test_answer_can_be_asked_again_without_speculation(page):
    page.open().enter()
    page.set("max-tokens", TOKENS)
    page.ask()
    page.wait()
    page.all(".figures button")[0].send_keys(Keys.ENTER)
    eventually(lambda: "token for token" in page.figures(), "a verdict")
    assert "The same, token for token." in page.figures()


def test_second_message_goes_on_with_the_conversation(page, alone):
    page.open().enter()
    page.coldest()
    page.set("max-tokens", 12)
    for text in ("looks once", "and turns"):
        page.ask(text)
        page.wait()
    first = page.browser.execute_script("return document.querySelector('.answer .words').textContent")
    messages = [
        {"role": "user", "content": "looks once"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "and turns"},
    ]
    (expected,) = alone.chat(messages, SamplingParams(temperature=0.0, max_tokens=12))
    assert page.answer() == expected.outputs[0].text


@pytest.mark.parametrize("way", ["escape", "button"])
def test_stop_ends_the_answer_and_the_servers_work(page, server, way):
    page.open().enter()
    page.coldest()
    page.set("max-tokens", 1900)
    page.ask()
    eventually(lambda: page.all(".answer .words > *"), "the first words")
    if way == "escape":
        page.press(Keys.ESCAPE)
    else:
        page["stop"].send_keys(Keys.ENTER)
    page.wait()
    server.require_idle()
    assert "stopped" in page.figures()
    tokens = int(re.match(r"(\d+) token", page.figures())[1])
    assert 0 < tokens < 400, "the whole answer has 473"
    assert not page.all(".figures button"), "half an answer is not compared"


def test_phone_has_everything_without_scrolling_sideways(page):
    page.open(PHONE)
    assert page.width() <= PHONE[0]
    page.enter()
    assert page.width() <= PHONE[0]
    assert not page["temperature"].is_displayed()
    page["settings-button"].send_keys(Keys.ENTER)
    assert page["settings-button"].get_attribute("aria-expanded") == "true"
    for name in ("speculation", "temperature", "seed", "max-tokens"):
        assert page[name].is_displayed()
    assert page.width() <= PHONE[0]
    page.set("max-tokens", TOKENS)
    page["settings-button"].send_keys(Keys.ENTER)
    page.ask(QUESTION + "x" * 60)
    page.wait()
    assert page.all(".answer .words > *")
    assert page.width() <= PHONE[0]
    for name in ("speed", "acceptance", "wake", "message", "send"):
        assert page[name].is_displayed()


def test_everything_is_reached_by_tab(page):
    page.open().enter()
    reached = []
    for _ in range(30):
        page.press(Keys.TAB)
        reached.append(page.browser.switch_to.active_element.get_attribute("id"))
    wanted = ["new-chat", "speculation", "temperature", "seed", "max-tokens", "message", "send"]
    once_round = reached[reached.index("new-chat") :]
    assert [name for name in once_round if name in wanted][: len(wanted)] == wanted


def test_key_is_asked_for_and_a_wrong_one_is_said(page):
    page.open()
    assert "asks for a key" in page["trouble"].text
    assert page.browser.switch_to.active_element == page["key"]
    page.press("wrong", Keys.ENTER)
    eventually(lambda: "does not take this key" in page["trouble"].text, "the complaint")
    page.enter()  # the wrong one is selected, so typing replaces it
    assert page["trouble"].text == ""


def test_refusal_is_told_and_what_was_typed_comes_back(page):
    page.open().enter()
    text = "the shark " * 3000
    page.browser.execute_script("document.getElementById('message').value = arguments[0]", text)
    page["message"].click()
    page.press(Keys.ENTER)
    eventually(lambda: page["trouble"].text, "a complaint")
    assert "tokens" in page["trouble"].text
    assert page["message"].get_property("value") == text.strip()
    assert not page.all(".turn")
    page["settings"].find_element(By.ID, "max-tokens").clear()
    page["message"].clear()
    page.ask()
    assert not page.all(".turn"), "nothing is sent while a setting is missing"


def test_policy_lets_nothing_in_from_elsewhere(server):
    for path in ("/", *(route.path for route in page_routes())):
        response = server.get(path, key=None)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    html = server.get("/", key=None).text
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", html)
    for name in FILES:
        text = page_response(name).body.decode().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"//\w+\.|url\(|@import|https?:", text), name
    with pytest.raises(InvalidInputError, match="no file"):
        page_response("../page.py")
