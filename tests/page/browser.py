"""A headless Chromium that shows the live page, and what the page says there."""

import base64
import json
import os

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.chrome.service import Service

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
  draining: rows('pods').filter((row) => row.querySelector('.tag')).map((row) => row.querySelector('button').textContent),
  routers: rows('routers').map(cells),
  log: [...document.querySelectorAll('#log li span')].map((one) => one.textContent),
  pauses: text('pauses'), pointed: text('pointed'),
  detail: document.getElementById('detail').hidden ? null : document.getElementById('detail').innerText,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
};
"""

# Returns the times of frames while the page is busy, in milliseconds, and the browser's long tasks.
FRAMES = """
const [seconds, done] = arguments;
const [frames, tasks] = [[], []];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: 'longtask' });
const until = performance.now() + seconds * 1000;
let last = performance.now();
const frame = (now) => {
  frames.push(now - last);
  last = now;
  if (now < until) requestAnimationFrame(frame);
  else done({ frames: frames.slice(1), tasks });
};
requestAnimationFrame(frame);
"""


class Browser:
    def __init__(self, folder):
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-background-networking",
                     "disable-component-update", "no-first-run", "hide-scrollbars",
                     f"user-data-dir={os.path.join(folder, 'chromium')}"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        self.driver.set_script_timeout(60)
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
        return self.driver.execute_async_script(FRAMES, seconds)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

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
