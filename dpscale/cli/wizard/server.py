"""Server of the wizard: one person, one page, on 127.0.0.1.

The address has a token that is exchanged once for a cookie. A request needs the cookie and the Host of the address, so
that no name of another site leads here; one that changes anything also needs its Origin. The page loads nothing from
elsewhere, and nothing about requests is logged.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import click

from dpscale.answers.report.page import compile_template, shared_file
from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import DpscaleError
from dpscale.cli.group import more_about

if TYPE_CHECKING:
    from dpscale.cli.wizard.guide import Guide

HERE = "127.0.0.1"
LARGEST = 1 << 20  # bytes of a request
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
           "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
           "X-Content-Type-Options": "nosniff"}  # fmt: skip
ENTER = '<!doctype html><html lang="en"><meta http-equiv="refresh" content="0;url=/"><title>dpscale wizard</title>'
USED = "this address was used before; if that was not you, end the wizard by Ctrl-C in its terminal, and start it again"
CLOSED = "open the address that the terminal shows"


class WizardServer(ThreadingHTTPServer):
    """Server of the page of a guide, on a free port."""

    daemon_threads, timeout = True, 0.5

    def __init__(self, guide: Guide) -> None:
        """Bind a free port, draw the token and the session cookie, and render the files of the page."""
        super().__init__((HERE, 0), WizardRequest)
        self.guide, self.lock = guide, threading.Lock()
        self.host = f"{HERE}:{self.server_port}"
        self.token, self.session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.cookie = f"dpscale-{self.server_port}"  # cookies of one host are shared by its ports
        self.address = f"http://{self.host}/?token={self.token}"
        self.last, self.finished = time.monotonic(), False
        page, script, style = (shared_file(name, __package__) for name in ("page.html", "page.js", "style.css"))
        self.files = {
            "/": ("text/html", compile_template(page)[0].render(guide.page())),
            "/style.css": ("text/css", shared_file("style.css") + style),
            "/page.js": ("text/javascript", script),
        }

    def server_bind(self) -> None:
        """Bind the socket; the method of the class above looks up the name of the host."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HERE, self.server_address[1]

    def handle_error(self, *_: object) -> None:
        """Print the type of an error alone: a traceback may have values of records."""
        click.echo(f"dpscale: a request failed with {getattr(sys.exc_info()[0], '__name__', '')}", err=True)

    def run(self, seconds: float) -> str:
        """Answer requests until the person finishes, or sends none for so long; return why it ends."""
        while not self.finished and time.monotonic() < self.last + seconds:
            self.handle_request()
        return "the wizard is finished" if self.finished else f"no request for {seconds / 60:g} minutes: it has stopped"

    def enter(self, token: str) -> bool:
        """Return whether a token is that of the address, at its first use."""
        with self.lock:
            known = bool(self.token) and secrets.compare_digest(token.encode(), self.token.encode())
            self.token = "" if known else self.token
        return known

    def answer(self, path: str, chosen: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to choices in the page; one request is planned at a time."""
        actions = {"/draft": self.guide.draft, "/write": self.guide.write}
        try:
            with self.lock:
                return discreetly("wizard", actions[path], chosen)
        except DpscaleError as error:
            return {"refused": f"{error}{more_about(error)}"}


class WizardRequest(BaseHTTPRequestHandler):
    """A request to the wizard."""

    server: WizardServer
    server_version, sys_version, timeout = "dpscale", "", 30

    def log_message(self, *_: object) -> None:
        """Log nothing: a request may have values of records."""

    def do_GET(self) -> None:
        """Exchange the token for the cookie, or send a file of the page."""
        asked = urlsplit(self.path)
        token = parse_qs(asked.query).get("token", [""])[0]
        if self.headers.get("Host") != self.server.host:
            self._send(403, f"the Host must be {self.server.host}")
        elif self._known():
            self.server.last = time.monotonic()
            kind, content = self.server.files.get(asked.path, ("", ""))
            self._send(200 if kind else 404, content or "no such page", kind)
        elif asked.path == "/" and token:
            if self.server.enter(token):
                self._send(200, ENTER, "text/html", f"{self.server.cookie}={self.server.session}; Path=/; HttpOnly; "
                           "SameSite=Strict")  # fmt: skip
            else:
                self._send(403, USED)
        else:
            self._send(403, CLOSED)

    def do_POST(self) -> None:
        """Answer choices of the page as JSON.

        A request of another site, without the cookie, of another type or too large is refused before its content is
        read.
        """
        stated = self.headers.get("Content-Length", "")
        # without a valid length it counts as too large
        size = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 10 else LARGEST + 1
        if self.headers.get("Host") != self.server.host or self.headers.get("Origin") != f"http://{self.server.host}":
            self._send(403, f"Host and Origin must be {self.server.host}")
        elif not self._known():
            self._send(403, CLOSED)
        elif self.headers.get("Content-Type") != "application/json" or size > LARGEST:
            self._send(413 if size > LARGEST else 415, f"expected JSON of at most {LARGEST:,} bytes")
        elif self.path == "/finish":
            self._send(200, "{}", "application/json")
            self.server.finished = True
        elif self.path in ("/draft", "/write"):
            self.server.last = time.monotonic()
            self._answer(self.rfile.read(size))
        else:
            self._send(404, "no such page")

    def _answer(self, body: bytes) -> None:
        """Answer a request with a JSON body by JSON."""
        try:
            chosen = json.loads(body)
        except (ValueError, RecursionError):
            self._send(400, "expected JSON")
            return
        self._send(200, json.dumps(self.server.answer(self.path, chosen)), "application/json")

    def _known(self) -> bool:
        """Return whether a request has the cookie of the session."""
        try:
            given = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return given is not None and secrets.compare_digest(given.value.encode(), self.server.session.encode())

    def _send(self, status: int, content: str, kind: str = "text/plain", cookie: str = "") -> None:
        """Send an answer with its headers; `kind` is the type of the content."""
        sent = content.encode()
        self.send_response(status)
        more = {"Content-Type": f"{kind or 'text/plain'}; charset=utf-8", "Content-Length": str(len(sent))}
        for name, value in {**HEADERS, **more, **({"Set-Cookie": cookie} if cookie else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)
