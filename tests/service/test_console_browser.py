"""The console in a browser: every page and flow, wide and narrow, and by keyboard alone."""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.service.console import running_console

AXE = Path(__file__).with_name("axe.min.js")
WAIT_S = 20
SIZES = {"wide": (1280, 900), "narrow": (400, 800)}
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
CHECK = """
const done = arguments[arguments.length - 1];
axe.run({resultTypes: ["violations"]}).then(found => done(found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => [one.id, ...one.nodes.map(node => node.html)])));
"""


class Browser:
    """A real browser, which visits one console."""

    def __init__(self, driver, deployment):
        self.driver, self.deployment = driver, deployment
        self.host = urlsplit(deployment.url).netloc

    def resize(self, size):
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, path):
        self.driver.get(f"{self.deployment.url}{path}")

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def wait(self, condition):
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, WAIT_S, 0.02).until(lambda _: condition())

    def click(self, selector, path):
        """Click an element, and wait for a page."""
        before = self.find("html")
        self.find(selector).click()
        self.wait(lambda: self.find("html") != before and self.path.startswith(path))

    @property
    def path(self):
        return urlsplit(self.driver.current_url).path

    @property
    def text(self):
        return self.find("main").text

    def sign_in(self, token):
        self.driver.delete_all_cookies()
        self.open("/console/sign-in")
        self.find("#token").send_keys(token)
        self.click("main button", "/console/overview")

    def check(self, *, is_refused=False):
        """Check accessibility, width, the browser's console, and the hosts of all requests.

        A refused form is noted in the browser's console.
        """
        self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        assert self.driver.execute_async_script(CHECK) == []
        width = self.driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= self.driver.execute_script("return window.innerWidth")
        entries = [entry["message"] for entry in self.driver.get_log("browser")]
        assert [one for one in entries if not (is_refused and "status of 4" in one)] == []
        events = [json.loads(one["message"]) for one in self.driver.get_log("performance")]
        urls = [
            event["message"]["params"]["request"]["url"]
            for event in events
            if event["message"]["method"] == "Network.requestWillBeSent"
        ]
        hosts = {urlsplit(url).netloc for url in urls if not url.startswith("data:")}
        assert hosts <= {self.host}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with running_console(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="module")
def chromium():
    """Run Chromium; without it, fail in CI, else skip."""
    webdriver = pytest.importorskip("selenium.webdriver")
    program, server = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or server is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "run tests/service/install-servers.sh"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, "--ignore-certificate-errors"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(server))
    yield driver
    driver.quit()


@pytest.fixture(params=SIZES)
def browser(request, chromium, deployment):
    """Return the browser after signing in, at both sizes."""
    browser = Browser(chromium, deployment)
    browser.resize(request.param)
    browser.sign_in(deployment.token)
    return browser


@pytest.fixture(params=SIZES)
def visitor(request, chromium, deployment):
    """Return the browser without a session, at both sizes."""
    browser = Browser(chromium, deployment)
    browser.resize(request.param)
    chromium.delete_all_cookies()
    return browser


def test_a_user_signs_in_and_out(visitor, deployment):
    visitor.open("/")
    visitor.wait(lambda: visitor.path == "/console/sign-in")
    visitor.check()
    visitor.find("#token").send_keys("fn_wrong")
    visitor.click("main button", "/console/sign-in")
    assert "The token is wrong or has expired." in visitor.text
    visitor.check(is_refused=True)
    visitor.find("#token").send_keys(deployment.token)
    visitor.click("main button", "/console/overview")
    visitor.check()
    visitor.click(".account button", "/console/sign-in")
    visitor.open("/console/overview")
    assert visitor.path == "/console/sign-in"


def test_an_administrator_signs_in_with_a_link(visitor, deployment):
    visitor.open(f"/console/sign-in?link={deployment.broker.state.new_link()}")
    visitor.check()
    visitor.click("main button", "/console/overview")
    assert visitor.find(".account span").text == "admin"
    visitor.check()


def test_pages_of_the_broker_are_shown(browser):
    assert "All providers of your collections are connected." in browser.text
    browser.click("nav a:nth-child(2)", "/console/providers")
    assert "north" in browser.text
    browser.check()
    browser.open("/console/nothing")
    assert "There is no page /console/nothing." in browser.text
    browser.check(is_refused=True)
