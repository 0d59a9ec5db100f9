#!/usr/bin/env python3
"""Opens Wattlock's pages in headless Chromium, on a wide screen and on a telephone, light and dark, and fails for

- a body that is wider than the screen, a console error, or a request for anything but the page itself (the exporter's
  also asks its own server for its style, its script and the counters);
- text in a picture below 9 pixels as it is shown;
- text without contrast to what is behind it (below 4.5 to 1; 3 to 1 from 24 pixels on: WCAG 2.1, 1.4.3).

    scripts/test/pages.py FOLDER              makes all pages with $WATTLOCK (else the newest built) and opens them
    scripts/test/pages.py FOLDER PAGE...      opens these: files, or addresses of a server on this machine

Pictures go to FOLDER, NAME-1280-light.png. Status 0: nothing was found; 3: no Chromium is installed. nginx's status page is
made if nginx and the module are there; else a line says that it is left out.
"""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTHS = (1280, 390)
LOOKS = ("light", "dark")
# Chromium encodes no higher picture.
HIGHEST = 12_000
PATIENCE = 60
# What the exporter's page asks its own server for; every other page asks for nothing.
EXPORTERS = ("page.css", "page.js", "api/v1/snapshot")
# What it says before it has asked.
EMPTY = "Reading the counters."

# What is wrong with the page as it is shown, as lines. Text is what has a text node of its own and takes room.
LOOK = r"""
(() => {
  const found = [], told = new Set();
  const say = (what) => { if (!told.has(what) && told.size < 20) { told.add(what); found.push(what); } };
  const root = document.documentElement;
  // A telephone zooms out until a body that is too wide fits: its own width says nothing.
  if (root.scrollWidth > WIDTH + 1) say(`the body is ${root.scrollWidth} px wide`);
  const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d', {willReadFrequently: true});
  const rgb = (colour) => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return context.getImageData(0, 0, 1, 1).data;
  };
  const light = (part) => { part /= 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgb(matchMedia('(prefers-color-scheme: dark)').matches ? '#121212' : '#ffffff');
  };
  let texts = 0;
  for (const element of document.body.querySelectorAll('*')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const box = element.getBoundingClientRect();
    if (!own || !box.width || !box.height || element.closest('title,style,script')) continue;
    texts += 1;
    const style = getComputedStyle(element), svg = element.ownerSVGElement;
    const size = parseFloat(style.fontSize) * (svg ? Math.abs(element.getScreenCTM().d) : 1);
    const words = element.textContent.trim().slice(0, 40);
    if (size < 9) say(`text of ${size.toFixed(1)} px: ${words}`);
    const [one, other] = [luminance(rgb(svg ? style.fill : style.color)), luminance(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < (size >= 24 ? 3 : 4.5)) say(`contrast of ${contrast.toFixed(1)} to 1: ${words}`);
  }
  if (texts < 3) say('the page is blank');
  const foreign = (script) => location.protocol === 'file:' || script.text || !script.src.startsWith(location.origin + '/');
  if ([...document.scripts].some(foreign)) say('the page has a script');
  return JSON.stringify({found, height: Math.ceil(root.scrollHeight)});
})()
"""


def fail(words):
    print(f"pages: {words}", file=sys.stderr)
    sys.exit(1)


def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Chromium:
    """A headless Chromium, driven through its pipe (Chrome DevTools Protocol)."""

    def __init__(self, program, folder):
        (theirs, ours), (back, forth) = os.pipe(), os.pipe()
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                 "--ignore-certificate-errors", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        shell = f'exec 3<&{theirs} 4>&{forth}; exec "$@"'
        self.child = subprocess.Popen(["bash", "-c", shell, "bash", *words], pass_fds=(theirs, forth),
                                      stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(forth)
        self.write, self.read = os.fdopen(ours, "wb", 0), os.fdopen(back, "rb", 0)
        self.rest, self.count, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.rest:
            piece = self.read.read(1 << 16)
            if not piece:
                fail("Chromium ended")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.count += 1
        request = {"id": self.count, "method": method, "params": params}
        if getattr(self, "session", None):
            request["sessionId"] = self.session
        self.write.write(json.dumps(request).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.count:
                if "error" in answer:
                    fail(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        until = time.monotonic() + PATIENCE
        while not any(event.get("method") == method for event in self.events):
            if time.monotonic() > until:
                fail(f"no {method} in {PATIENCE} s")
            self.events.append(self.message())

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression)["result"]["value"]

    def look(self, address, width, look, picture):
        """What is wrong with a page on such a screen."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": look}])
        self.events.clear()
        answer = self.call("Page.navigate", url=address)
        if "errorText" in answer:
            fail(f"{address}: {answer['errorText']}")
        self.wait("Page.loadEventFired")
        until = time.monotonic() + PATIENCE
        while EMPTY in self.evaluate("document.body.innerText"):
            if time.monotonic() > until:
                fail(f"{address}: still \"{EMPTY}\" after {PATIENCE} s")
            time.sleep(0.1)
        seen = json.loads(self.evaluate(LOOK.replace("WIDTH", str(width))))
        own = [address] + [address + path for path in EXPORTERS if address.startswith("http://")]
        found = seen["found"]
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if url.split("#")[0] not in own and not url.startswith("data:"):
                    found.append(f"a request for {url}")
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"the console says: {params['entry']['text']}")
            elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                found.append(f"the console says: {json.dumps(params)[:200]}")
        height = min(seen["height"], HIGHEST)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        picture.write_bytes(base64.b64decode(data))
        return found

    def end(self):
        self.session = None
        self.call("Browser.close")
        self.child.wait(timeout=PATIENCE)


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=ROOT, **more)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, words))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def program():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / kind / "wattlock" for kind in ("debug", "release")]
    built = sorted((path for path in built if path.exists()), key=lambda path: path.stat().st_mtime)
    if "WATTLOCK" not in os.environ and not built:
        fail("no program was built: make build")
    return pathlib.Path(os.environ.get("WATTLOCK") or built[-1]).resolve(), target


def made(folder):
    """All pages of the program's: what their files are called, and where nginx serves one."""
    wattlock, target = program()
    pages = folder / "pages"
    pages.mkdir(exist_ok=True)
    os.environ["WATTLOCK_PROFILE"] = str(folder / "profile.json")
    kinds = [word for kind in ("aes-256-gcm-seal", "sha-256", "rsa-2048-private") for word in ("--kind", kind)]
    run(wattlock, "calibrate", "--quick", "--per-point-ms", "1", *kinds, "--report", pages / "calibration.html")
    run(wattlock, "lab", "all", "--report", pages / "lab.html")
    records = [sorted((ROOT / "docs/measurements").glob("*-files.json"))[-1]]
    joules = folder / "joules.json"
    run(wattlock, "energy", "--json", "--output", joules, "--", "true")
    site, record = folder / "site", folder / "serve.json"
    site.mkdir(exist_ok=True)
    (site / "index.html").write_text("<!doctype html><p>A page.\n" * 100)
    module = target / "nginx/ngx_http_wattlock_module.so"
    path = f"{os.environ['PATH']}:/usr/sbin"
    served = shutil.which("nginx", path=path) and (module.exists() or os.environ.get("WATTLOCK_NGINX"))
    if served:
        run(wattlock, "serve", site, "--port", "0", "--compare", "--seconds", "2", "--json", record)
        records.append(record)
    else:
        print("left out: nginx's status page and its part of the report (no nginx, or no module for it was built)")
    notes = ["--note", "a file that was sealed and opened is the file that it was, byte by byte",
             "--see", "Documents", "../docs/README.md"]
    run(wattlock, "report", "-o", pages / "report.html", *notes, *records, joules)
    shutil.copy(ROOT / "docs/research/reproduced.html", pages / "reproduced.html")
    return sorted(pages.glob("*.html")), (wattlock, site) if served else None


def status_page(wattlock, site, pages):
    """nginx's status page as a file, after some handshakes and a second look."""
    port = free_port()
    words = [str(wattlock), "serve", str(site), "--port", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"https://127.0.0.1:{port}/wattlock_status?format=html"
        fetch(address)
        for _ in range(3):
            for _ in range(20):
                fetch(address.split("wattlock_status")[0])
            time.sleep(1)
            text = fetch(address)
        path = pages / "nginx.html"
        path.write_text(text)
        return path
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE)


@contextlib.contextmanager
def exporter(wattlock, folder):
    """The exporter's page by its address, while a program has something to tell."""
    environment = dict(os.environ, WATTLOCK_TELEMETRY_DIR=str(folder / "telemetry"))
    words = [str(wattlock), "keygen", "-o", str(folder / "exporter-key.txt"), "--force"]
    key = subprocess.run(words, capture_output=True, text=True, env=environment)
    recipient = next((word for word in (key.stdout + key.stderr).split() if word.startswith("age1")), None)
    if recipient is None:
        fail(f"{' '.join(words)}: {key.stderr.strip()}")
    words = [str(wattlock), "seal", "-q", "-f", "-r", recipient, "-o", "/dev/null"]
    sealing = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
    words = [str(wattlock), "exporter", "--listen", "127.0.0.1:0"]
    serving = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        sealing.stdin.write(bytes(4 << 20))
        sealing.stdin.flush()
        address = serving.stdout.readline().strip()
        if not address.startswith("http://127.0.0.1:"):
            fail(f"{' '.join(words)}: it says no address: {address!r}")
        yield address.rstrip("/") + "/"
    finally:
        serving.terminate()
        serving.wait(timeout=PATIENCE)
        sealing.stdin.close()
        sealing.wait(timeout=PATIENCE)


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def fetch(address):
    trusting = ssl._create_unverified_context()
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return urllib.request.urlopen(address, context=trusting, timeout=PATIENCE).read().decode()
        except OSError as error:
            if time.monotonic() > until:
                fail(f"{address}: {error}")
            time.sleep(0.1)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    chromium = browser()
    if chromium is None:
        print("skipped: no Chromium is installed")
        sys.exit(3)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    folder, pages = folder.resolve(), sys.argv[2:]
    bad = 0
    with contextlib.ExitStack() as ends:
        if not pages:
            files, server = made(folder)
            if server:
                files.append(status_page(*server, folder / "pages"))
            pages = [*map(str, files), ends.enter_context(exporter(program()[0], folder))]
        profile = ends.enter_context(tempfile.TemporaryDirectory(prefix="wattlock-pages-"))
        opened = Chromium(chromium, profile)
        for page in pages:
            is_address = page.startswith(("http://127.0.0.1", "https://127.0.0.1"))
            address = page if is_address else pathlib.Path(page).resolve().as_uri()
            name = "exporter" if is_address else pathlib.Path(page).stem
            for width in WIDTHS:
                for look in LOOKS:
                    found = opened.look(address, width, look, folder / f"{name}-{width}-{look}.png")
                    for line in found:
                        print(f"{name}, {width} px, {look}: {line}")
                    bad += len(found)
        opened.end()
    print(f"pages: {len(pages)} opened, {bad} things found")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
