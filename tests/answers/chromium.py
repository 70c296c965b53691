"""A page in headless Chromium, driven over the debugging protocol: script results, console messages, screenshots."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SECONDS = 60
KEYS = {key: {"windowsVirtualKeyCode": code} for key, code in {"Enter": 13, "Tab": 9, " ": 32, "ArrowDown": 40}.items()}
WAYS = {
    "desktop": {"width": 1200, "height": 900, "scheme": "light", "media": ""},
    "phone": {"width": 390, "height": 844, "scheme": "light", "media": ""},
    "dark": {"width": 1200, "height": 900, "scheme": "dark", "media": ""},
    "print": {"width": 900, "height": 1200, "scheme": "light", "media": "print"},
}


def render_page(page: Path, script: str, ways=tuple(WAYS), pictures: Path | None = None) -> dict[str, dict]:
    """Return, for every display mode, the result of `script` and the console messages.

    With a folder `pictures`, a screenshot MODE.png of every mode is written there.
    """
    return asyncio.run(asyncio.wait_for(_render_page(page.resolve().as_uri(), script, ways, pictures), SECONDS))


def read_page(address: str, script: str):
    """Return the result of `script` on the page at an address."""
    found = asyncio.run(asyncio.wait_for(_render_page(address, script, ("desktop",), None), SECONDS))
    return found["desktop"]["found"]


def drive_page(address: str, visit):
    """Return the result of the coroutine function `visit` of a session that is on the page at an address."""

    async def visited():
        async with _browser() as talk:
            for domain in ("Page", "Runtime", "Log"):
                await talk.send(f"{domain}.enable")
            await talk.go(address)
            return await visit(talk)

    return asyncio.run(asyncio.wait_for(visited(), 5 * SECONDS))


async def _render_page(page, script, ways, pictures):
    async with _browser() as talk:
        return {way: await _render_mode(talk, page, script, way, pictures) for way in ways}


@asynccontextmanager
async def _browser():
    """Start Chromium and yield a session with its page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # children of the browser may still write
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            "--remote-allow-origins=*",
        ]
        process = subprocess.Popen([BROWSER, *options, f"--user-data-dir={profile}", "about:blank"],
                                   stderr=subprocess.PIPE, text=True)  # fmt: skip
        try:
            port = next(m[1] for line in process.stderr if (m := re.search(r"ws://[^:]+:(\d+)/", line)))
            listed = json.loads((await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")).body)
            target = next(one for one in listed if one["type"] == "page")
            yield DevToolsSession(await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=1 << 28))
        finally:
            process.terminate()
            process.wait()


class DevToolsSession:
    """A connection to the debugging protocol; `console` collects the console messages."""

    def __init__(self, socket):
        self.socket, self.number, self.console = socket, 0, []

    async def send(self, method, **params):
        self.number += 1
        await self.socket.write_message(json.dumps({"id": self.number, "method": method, "params": params}))
        while (message := json.loads(await self.socket.read_message())).get("id") != self.number:
            self._record_message(message)
        assert "error" not in message, message
        return message["result"]

    async def go(self, address):
        await self.send("Page.navigate", url=address)
        await self.wait_for_event("Page.loadEventFired")

    async def evaluate(self, script):
        result = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, script):
        """Wait until a script has a true result, and return it."""
        while not (found := await self.evaluate(script)):
            await asyncio.sleep(0.05)
        return found

    async def press(self, key, times=1):
        """Press a key; its effects are those of a keyboard."""
        text = {"Enter": {"text": "\r"}, " ": {"text": " "}}.get(key, {})
        for _ in range(times):
            await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **KEYS.get(key, {}), **text)
            await self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **KEYS.get(key, {}))

    async def write(self, selector, text):
        """Replace the text of a field by typing."""
        await self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select(); }})()"
        )
        await self.send("Input.insertText", text=text)

    async def click(self, selector):
        """Click at the middle of an element, which must be visible there."""
        x, y = await self.evaluate(
            f"""(() => {{ const one = document.querySelector({json.dumps(selector)});
            one.scrollIntoView({{ block: "center" }});
            const box = one.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
            if (!one.contains(document.elementFromPoint(x, y))) throw Error("covered"); return [x, y]; }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def resize(self, width, height):
        await self.send("Emulation.setScrollbarsHidden", hidden=True)
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self, path):
        """Write a screenshot of the whole page."""
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def wait_for_event(self, event):
        while (message := json.loads(await self.socket.read_message())).get("method") != event:
            self._record_message(message)

    def _record_message(self, message):
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.console.append(message["params"])


async def _render_mode(talk, page, script, way, pictures):
    display, talk.console = WAYS[way], []
    for domain in ("Page", "Runtime", "Log"):
        await talk.send(f"{domain}.enable")
    await talk.send("Emulation.setDeviceMetricsOverride", width=display["width"], height=display["height"],
                   deviceScaleFactor=1, mobile=False)  # fmt: skip
    scheme = [{"name": "prefers-color-scheme", "value": display["scheme"]}]
    await talk.send("Emulation.setEmulatedMedia", media=display["media"], features=scheme)
    await talk.go(page)
    found = await talk.evaluate(script)
    if pictures is not None:
        await talk.picture(pictures / f"{way}.png")
    return {"found": found, "console": list(talk.console)}
