"""A page in headless Chromium, driven over its debugging protocol: what a script in it returns, console, pictures."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SECONDS = 60
WAYS = {
    "desktop": {"width": 1200, "height": 900, "scheme": "light", "media": ""},
    "phone": {"width": 390, "height": 844, "scheme": "light", "media": ""},
    "dark": {"width": 1200, "height": 900, "scheme": "dark", "media": ""},
    "print": {"width": 900, "height": 1200, "scheme": "light", "media": "print"},
}


def looked_at(page: Path, script: str, ways=tuple(WAYS), pictures: Path | None = None) -> dict[str, dict]:
    """Of each way what `script` returns, what the console said, and, where a folder is given, a picture NAME.png."""
    return asyncio.run(asyncio.wait_for(_looked_at(page, script, ways, pictures), SECONDS))


async def _looked_at(page, script, ways, pictures):
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
            talk = Talk(await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=1 << 28))
            return {way: await _way(talk, page, script, way, pictures) for way in ways}
        finally:
            process.terminate()
            process.wait()


class Talk:
    """Commands and their answers; `said`: what the console wrote since."""

    def __init__(self, socket):
        self.socket, self.number, self.said = socket, 0, []

    async def ask(self, method, **params):
        self.number += 1
        await self.socket.write_message(json.dumps({"id": self.number, "method": method, "params": params}))
        while (message := json.loads(await self.socket.read_message())).get("id") != self.number:
            self._heard(message)
        assert "error" not in message, message
        return message["result"]

    async def until(self, event):
        while (message := json.loads(await self.socket.read_message())).get("method") != event:
            self._heard(message)

    def _heard(self, message):
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.said.append(message["params"])


async def _way(talk, page, script, way, pictures):
    told, talk.said = WAYS[way], []
    for domain in ("Page", "Runtime", "Log"):
        await talk.ask(f"{domain}.enable")
    await talk.ask("Emulation.setDeviceMetricsOverride", width=told["width"], height=told["height"],
                   deviceScaleFactor=1, mobile=False)  # fmt: skip
    scheme = [{"name": "prefers-color-scheme", "value": told["scheme"]}]
    await talk.ask("Emulation.setEmulatedMedia", media=told["media"], features=scheme)
    await talk.ask("Page.navigate", url=page.resolve().as_uri())
    await talk.until("Page.loadEventFired")
    result = await talk.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
    assert "exceptionDetails" not in result, result["exceptionDetails"]
    if pictures is not None:
        shot = await talk.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        (pictures / f"{way}.png").write_bytes(base64.b64decode(shot["data"]))
    return {"found": result["result"].get("value"), "console": list(talk.said)}
