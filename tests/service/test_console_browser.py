"""The console in a browser: every page and flow, wide and narrow, and by keyboard alone."""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.service.console import AREAS, PROVIDERS, RADII, SEARCHES, TABLES, held, running_console

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
OVERLAPS = """
const texts = [...document.querySelectorAll("svg text")];
const boxes = texts.map(one => one.getBoundingClientRect());
return texts.filter((_, i) => boxes.some((other, j) => i < j && boxes[i].left < other.right
  && other.left < boxes[i].right && boxes[i].top < other.bottom && other.top < boxes[i].bottom)
  || boxes[i].right > texts[i].ownerSVGElement.getBoundingClientRect().right)
  .map(one => one.textContent);
"""


CUT = """
return [...document.querySelectorAll(".grid label, pre")]
  .filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent);
"""
COUNT_LINES = """
return [...document.querySelectorAll("td.time, td.wrap")].map(one => {
  const range = document.createRange();
  range.selectNodeContents(one);
  const n = new Set([...range.getClientRects()].map(box => box.top)).size;
  return one.className == "time" ? 3 * n : n;
});
"""


class Browser:
    """A real browser, which visits one console."""

    def __init__(self, driver, deployment):
        self.driver, self.deployment = driver, deployment
        self._messages = []
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
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        replaced = (StaleElementReferenceException,)  # a part of the page, meanwhile
        return WebDriverWait(self.driver, WAIT_S, 0.02, replaced).until(lambda _: condition())

    def click(self, selector, path):
        """Click an element, and wait for a page."""
        before = self.find("html")
        self.find(selector).click()
        self.wait(lambda: self.find("html") != before and self.path.startswith(path))

    def press(self, *keys):
        """Press keys, whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def focus_on(self, name):
        """Press the tab key until an element is reached, by its id or its text."""
        for _ in range(60):
            self.press("\ue004")
            reached = self.driver.switch_to.active_element
            outline = reached.value_of_css_property("outline-style")
            assert outline != "none", reached.get_attribute("outerHTML")
            if name in (reached.get_attribute("id"), reached.text):
                return
        raise AssertionError(f"the tab key does not reach {name!r}")

    def fill(self, fields):
        """Fill the fields of a form."""
        for name, value in fields.items():
            field = self.find(f'[name="{name}"]')
            if field.get_attribute("type") == "checkbox":
                field.click()
            else:
                field.send_keys(value)

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
        """Check accessibility, width, cut words, the browser's console, and hosts.

        A refused form is noted in the browser's console.
        """
        self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        assert self.driver.execute_async_script(CHECK) == []
        assert self.driver.execute_script(OVERLAPS) == []
        assert self.driver.execute_script(CUT) == []
        width = self.driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= self.driver.execute_script("return window.innerWidth")
        entries = [entry["message"] for entry in self.driver.get_log("browser")]
        assert [one for one in entries if not (is_refused and "status of 4" in one)] == []
        urls = [one["request"]["url"] for one in self.list_messages("requestWillBeSent")]
        hosts = {urlsplit(url).netloc for url in urls if not url.startswith("data:")}
        assert hosts <= {self.host}

    def list_messages(self, method):
        """Return what the browser's network reported, since it was opened."""
        log = self.driver.get_log("performance")
        self._messages += [json.loads(one["message"])["message"] for one in log]
        return [one["params"] for one in self._messages if one["method"] == f"Network.{method}"]


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


@pytest.fixture(scope="module")
def cookies(chromium, deployment):
    """Return the cookies of a session."""
    Browser(chromium, deployment).sign_in(deployment.token)
    return chromium.get_cookies()


@pytest.fixture(params=SIZES)
def browser(request, chromium, deployment, cookies):
    """Return the browser with a session, at both sizes."""
    browser = Browser(chromium, deployment)
    browser.resize(request.param)
    chromium.delete_all_cookies()
    for cookie in cookies:
        chromium.add_cookie(cookie)
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
    browser.open("/console/overview")
    assert "Searches fail or are partial without ghost." in browser.text
    browser.check()
    browser.click("nav a:nth-child(2)", "/console/providers")
    assert "north" in browser.text
    browser.check()
    browser.open("/console/nothing")
    assert "There is no page /console/nothing." in browser.text
    assert browser.find("nav").text.startswith("Overview")
    browser.check(is_refused=True)


@pytest.mark.parametrize("collection", SEARCHES)
def test_objects_of_each_kind_are_searched(browser, collection):
    browser.open("/console/search")
    browser.click(f'a[href="/console/search/{collection}"]', f"/console/search/{collection}")
    browser.check()
    browser.fill(SEARCHES[collection])
    browser.click("form.card > button", "/console/queries/")
    rows = browser.find_all("main tbody tr")
    assert 0 < len(rows) <= len(TABLES.get(collection, TABLES["points"]))
    assert set(PROVIDERS) >= {row.find_elements("css selector", "td")[1].text for row in rows}
    browser.find("summary").click()
    browser.check()
    pictures = [name for name in ("map", "structure") if browser.find_all(f"main .{name}")]
    assert pictures == {"cities": ["map"], "molecules": ["structure"]}.get(collection, [])
    images = "return [...document.images].every(one => one.complete && one.naturalWidth > 0)"
    assert browser.driver.execute_script(images)


@pytest.mark.parametrize("collection", SEARCHES)
def test_objects_within_a_radius_are_found_and_counted(browser, collection):
    browser.open(f"/console/search/{collection}")
    browser.fill({n: v for n, v in SEARCHES[collection].items() if n != "algorithm"})
    browser.fill({"radius": str(RADII[collection])})
    browser.click("form.card > button", "/console/queries/")
    n_found = len(browser.find_all("main tbody tr"))
    assert 0 < n_found < len(TABLES.get(collection, TABLES["points"]))
    assert len(browser.find_all("figure.map .within")) == (collection == "cities")
    browser.check()
    browser.find("summary").click()
    browser.click('form.card > [formaction^="/console/count"]', "/console/queries/")
    assert f"{n_found} object" in browser.text
    numbers = [int(cell.text) for cell in browser.find_all("main tbody td")]
    assert sum(numbers) == n_found
    assert len(numbers) == len(PROVIDERS)
    browser.find("summary").click()
    browser.check()


def test_objects_that_meet_a_filter_are_counted(browser):
    browser.open("/console/search/points")
    browser.fill({"min.age": "50"})
    browser.click('form.card > [formaction^="/console/count"]', "/console/queries/")
    assert "2 objects of north, south" in browser.text
    browser.check()


def test_a_click_on_a_map_sets_the_point(browser):
    browser.open("/console/search/cities")
    browser.check()

    def read():
        names = ("longitude", "latitude")
        return [float(browser.find(f'[name="query.{n}"]').get_attribute("value")) for n in names]

    browser.find("figure.map svg").click()  # its center is that of the area
    west, south, east, north = AREAS["north"]
    assert read() == pytest.approx([(west + east) / 2, (south + north) / 2], abs=2)
    browser.fill({"query.longitude": "\ue0105", "query.latitude": "50"})
    browser.open("/console/search/cities")
    browser.fill({"query.longitude": "5", "query.latitude": "50", "payload": "true"})
    browser.click("form.card > button", "/console/queries/")
    assert len(browser.find_all("figure.map circle")) == len(TABLES["cities"])
    assert "Distance (m)" in [heading.text for heading in browser.find_all("thead th")]
    browser.check()
    browser.find("figure.map svg").click()
    longitude, latitude = read()
    assert longitude == pytest.approx(5, abs=1)
    assert 35 < latitude < 65
    browser.find('[name="query.longitude"]').send_keys(" ")
    browser.click("form.card > button", "/console/queries/")
    browser.check()


def test_a_vector_is_read_from_a_file(browser, tmp_path):
    file = tmp_path / "vector.csv"
    file.write_text("2;2\n", encoding="utf-8")
    browser.open("/console/search/points")
    browser.find("#query-file").send_keys(str(file))
    browser.wait(lambda: browser.find("#query").get_attribute("value") == "2;2\n")
    browser.click("form.card > button", "/console/queries/")
    assert browser.find("tbody tr td:last-child").text == "0"
    browser.check()


def test_a_wrong_field_is_shown_with_the_form(browser):
    browser.open("/console/search/points")
    browser.find("form.card > button").click()
    assert browser.path == "/console/search/points"  # the browser asks for the field
    assert not browser.find_all("[role=alert]")
    browser.fill({"query": "1, x"})
    browser.click("form.card > button", "/console/search/points")
    assert "Query: expected a number, got 'x'." in browser.find("[role=alert]").text
    assert browser.find("#query").get_attribute("value") == "1, x"
    browser.check(is_refused=True)


def test_a_long_search_shows_its_progress(browser, deployment):
    with held(deployment, n_sent=1) as is_released:
        browser.open("/console/search/points")
        browser.fill({"query": "1, 1", "payload": "true", "algorithm": "baseline"})
        browser.click("form.card > button", "/console/queries/")
        browser.wait(lambda: "10 neighbours are certain so far." in browser.text)
        received = "eventSourceMessageReceived"
        browser.wait(lambda: len(browser.list_messages(received)) >= 2)
        names = [one["eventName"] for one in browser.list_messages(received)]
        assert names == ["round", "certified"]
        browser.check()
        is_released.set()
        browser.wait(lambda: browser.find_all(".state.good"))
    assert "10 neighbours of" in browser.text
    browser.check()


def test_a_long_search_is_cancelled(browser, deployment):
    with held(deployment):
        browser.open("/console/search/points")
        browser.fill({"query": "1, 1"})
        browser.click("form.card > button", "/console/queries/")
        assert "0 exchanges done" in browser.text
        browser.click("main button", "/console/search/points")
    assert deployment.broker.log.entries_of("alice", 1)[0]["outcome"] == "cancelled"
    browser.check()


def test_a_sealed_collection_is_explained(browser):
    browser.open("/console/search/sealed")
    assert "a browser has no key" in browser.text
    for setting, outcome in (("denied", "Selected"), ("granted", "Copied")):
        permission = {"permission": {"name": "clipboard-write"}, "setting": setting}
        browser.driver.execute_cdp_cmd("Browser.setPermission", permission)
        browser.find("[data-copy]").click()
        browser.wait(lambda expected=outcome: browser.find("[data-copy]").text == expected)
    selected = browser.driver.execute_script("return String(getSelection())")
    assert selected.strip() == browser.find("pre").text
    browser.check()


def test_all_pages_have_a_dark_scheme(visitor, deployment):
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    visitor.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        visitor.open(f"/console/sign-in?link={deployment.broker.state.new_link()}")
        visitor.check()
        visitor.click("main button", "/console/overview")
        pages = [urlsplit(one.get_attribute("href")).path for one in visitor.find_all("nav a")]
        assert len(pages) == 7
        for path in (*pages, *(f"/console/search/{name}" for name in (*SEARCHES, "sealed"))):
            visitor.open(path)
            visitor.check()
            assert max(visitor.driver.execute_script(COUNT_LINES), default=0) <= 6, path
        for name, kind in (("cities", "search"), ("molecules", "search"), ("points", "explain")):
            visitor.open(f"/console/search/{name}")
            visitor.fill(SEARCHES[name])
            visitor.click(f'form.card > [formaction^="/console/{kind}"]', "/console/queries/")
            visitor.check()
        visitor.open("/console/search/points")
        visitor.fill({"query": "1, x"})
        visitor.click("form.card > button", "/console/search/points")
        visitor.check(is_refused=True)
        color = visitor.find("body").value_of_css_property("background-color")
        assert color == "rgba(20, 25, 31, 1)"
    finally:
        visitor.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_keyboard_is_enough(visitor, deployment):
    enter = "\ue007"
    visitor.open("/console/sign-in")
    visitor.press(deployment.token, enter)  # the field has the focus
    visitor.wait(lambda: visitor.path == "/console/overview")
    visitor.focus_on("Skip to the content")
    visitor.press(enter)
    assert visitor.driver.switch_to.active_element.get_attribute("id") == "main"
    visitor.open("/console/overview")
    visitor.focus_on("Search")
    visitor.press(enter)
    visitor.wait(lambda: visitor.path == "/console/search")
    visitor.focus_on("points\n12 vectors, euclidean")
    visitor.press(enter)
    visitor.wait(lambda: visitor.path == "/console/search/points")
    visitor.focus_on("query")
    visitor.press("1, 1")
    visitor.focus_on("k")
    visitor.press("\ue009a\ue000", "3", enter)
    visitor.wait(lambda: visitor.path.startswith("/console/queries/"))
    assert len(visitor.find_all("main tbody tr")) == 3
    visitor.focus_on("Change this search")
    visitor.press(enter)
    assert visitor.find("#query").is_displayed()
    visitor.focus_on("radius")
    visitor.press("1")
    visitor.focus_on("Count")
    visitor.press(enter)
    visitor.wait(lambda: "5 objects of north, south" in visitor.text)
    visitor.focus_on("Parquet")
    visitor.open("/console/overview")
    visitor.focus_on("Sign out")
    visitor.press(enter)
    visitor.wait(lambda: visitor.path == "/console/sign-in")
    visitor.check()
