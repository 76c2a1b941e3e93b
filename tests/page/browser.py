"""A headless Chromium that shows the live page, and what the page says there."""

import base64
import json
import os

from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import element_to_be_clickable
from selenium.webdriver.support.wait import WebDriverWait

# Seconds. A busy machine may need several for what is usually immediate.
PATIENCE = 60

# Returns the page as a reader sees it, in the form of the object `keyspace` of /status.
READ = """
const text = (id) => document.getElementById(id).textContent;
const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)];
const cells = (row) => [...row.children].map((cell) => cell.textContent);
return {
  verdict: text('verdict'), tone: document.getElementById('headline').dataset.state,
  leader: text('leader'), revision: text('revision'), partitions: text('partitions'), unowned: text('unowned'),
  notices: [...document.querySelectorAll('#notices li')].map((one) => one.textContent),
  handoffs: rows('moves').filter((row) => row.className !== 'past').map(cells),
  pods: rows('pods').map((row) => [row.querySelector('button').textContent, row.querySelector('.owned').textContent]),
  rates: rows('pods').map((row) => cells(row).slice(3, 6)),
  draining: rows('pods').filter((row) => row.querySelector('.tag')).map((row) => row.querySelector('button').textContent),
  routers: rows('routers').map(cells),
  log: [...document.querySelectorAll('#log li span')].map((one) => one.textContent),
  pauses: text('pauses'), pointed: text('pointed'),
  old: document.body.hasAttribute('data-old'),
  acts: [...document.querySelectorAll('[data-action], #placement, #move, .acts')].filter((one) => one.offsetParent).map((one) => one.outerHTML),
  images: document.images.length,
  dialog: document.getElementById('action').open ? document.getElementById('action').innerText : null,
  answer: text('action-answer'),
  detail: document.getElementById('detail').hidden ? null : document.getElementById('detail').innerText,
  clipped: [...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.parentElement.id),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
};
"""

# Returns the times of frames while the page is busy, in milliseconds, the browser's long tasks, and how often the page has drawn
# its map of many partitions.
FRAMES = """
const [seconds, done] = arguments;
const [frames, tasks] = [[], []];
const put = CanvasRenderingContext2D.prototype.putImageData;
let draws = 0;
CanvasRenderingContext2D.prototype.putImageData = function(...given) { draws += 1; return put.apply(this, given); };
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: 'longtask' });
const until = performance.now() + seconds * 1000;
let last = performance.now();
const frame = (now) => {
  frames.push(now - last);
  last = now;
  if (now < until) requestAnimationFrame(frame);
  else {
    CanvasRenderingContext2D.prototype.putImageData = put;
    done({ frames: frames.slice(1), tasks, draws });
  }
};
requestAnimationFrame(frame);
"""


class Browser:
    """`home`: whose certificates it has."""

    def __init__(self, folder, program="/usr/bin/chromium", home=None):
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-background-networking",
                     "disable-component-update", "no-first-run", "hide-scrollbars",
                     f"user-data-dir={os.path.join(folder, 'chromium')}"):
            options.add_argument(f"--{flag}")
        environment = {**os.environ, "HOME": home} if home else None
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver", env=environment))
        self.driver.set_script_timeout(180)
        # The metrics of a page are CPU times then, which other processes of a busy machine do not add to.
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        self.requests = []

    def open(self, url, width=1024, dark=False):
        self.resize(width)
        self.scheme(dark)
        self.driver.get(url)

    def resize(self, width):
        size = {"width": width, "height": 1000 if width > 600 else 844, "deviceScaleFactor": 1, "mobile": width <= 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def scheme(self, dark):
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def read(self):
        return self.driver.execute_script(READ)

    def frames(self, seconds):
        """Returns what FRAMES does, and the CPU time of the page's main thread meanwhile, in milliseconds."""
        before = self.cpu_time()
        measured = self.driver.execute_async_script(FRAMES, seconds)
        return measured | {"cpu": self.cpu_time() - before}

    def cpu_time(self):
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return 1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector):
        """Clicks on it as soon as that is possible: some actions show only once the page knows of the right to them."""
        def clicked(driver):
            found = element_to_be_clickable((By.CSS_SELECTOR, selector))(driver)
            if found:
                found.click()
            return found

        # The page may replace it, or move it, between the look and the click.
        passing = [StaleElementReferenceException, ElementClickInterceptedException]
        WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05, ignored_exceptions=passing).until(clicked, selector)

    def type(self, selector, text):
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def press(self, *keys):
        """Sends keys, by the names that selenium has for them, to what has the focus."""
        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def focused(self):
        script = "const at = document.activeElement; return at.id || at.tagName + ' in ' + at.parentElement.id"
        return self.driver.execute_script(script)

    def logs(self):
        """Returns what the console has shown at `warning` or above since the last call, and notes all requests."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def screenshot(self, path, whole=True):
        """Writes a picture of the page, of its whole length."""
        shot = {"format": "png"}
        if whole:
            size = self.driver.execute_script("return [innerWidth, document.documentElement.scrollHeight]")
            shot |= {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}}
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))

    def quit(self):
        self.driver.quit()
