"""The clients. They differ in how they wait; the requests are the same."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
import random
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from decimal import Decimal
from typing import Any, Unpack
from urllib.parse import SplitResult, unquote, urlsplit

from ._requests import Request, Requests, T as T, path
from ._types import Change, Options

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
# Status, headers, and the body piece by piece.
Response = tuple[int, dict[str, str], AsyncIterator[bytes]]
# Before each further try. Requests can be repeated, as jobs are added with an `Idempotency-Key`; only tokens are made once.
PAUSES = (0.0, 0.1, 0.5, 2.0)
# How long a feed may be silent; the service sends something every 20 s.
SILENT_SEC = 60.0


class ServiceError(Exception):
    """The service refused a request. `retry_after` is in seconds, and given if the queue is full."""

    def __init__(self, status: int, error: str, reason: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status, self.error, self.reason, self.retry_after = status, error, reason, retry_after


class AsyncClient(Requests):
    """A client for one event loop. With several URLs, the next is used when one fails.

    Cancelling a call closes its connection, so that jobs that it claims go back."""

    def __init__(self, url: str | Sequence[str], **options: Unpack[Options]) -> None:
        self._urls = [urlsplit(one) for one in ([url] if isinstance(url, str) else url)]
        if not self._urls or any(one.scheme not in ("http", "https") or not one.hostname for one in self._urls):
            raise ValueError("the URL of the service must begin with http:// or https://")
        self._make = lambda: self
        self._tls = options.get("tls") or (ssl.create_default_context() if any(one.scheme == "https" for one in self._urls) else None)
        self._headers, self._timeout_sec = dict(options.get("headers") or {}), options.get("timeout_sec", 30)
        self._at, self._idle = 0, deque[Streams]()

    async def send(self, request: Request[T]) -> T:
        """Makes a request. Raises `ServiceError`, or `ConnectionError` if the service cannot be reached."""
        body = b"" if request.body is None else json.dumps(request.body, allow_nan=False).encode()
        if any(not (value.isascii() and value.isprintable()) for value in request.headers.values()):
            raise ValueError("headers have printable ASCII characters only")
        for pause in (*(PAUSES if request.is_repeatable else ()), None):
            at, timeout_sec = self._at, min(request.timeout_sec, self._timeout_sec) + request.wait_sec
            try:
                async with self._sent(request, body, timeout_sec) as (status, headers, pieces):
                    answer = b"".join([piece async for piece in pieces])
                return _read(request, status, headers, answer)
            except (ConnectionError, ServiceError) as error:
                if isinstance(error, ServiceError) and error.status not in (502, 503, 504):
                    raise
                # Unless another request has moved on from it already.
                if self._at == at:
                    await self.close()
                    self._at = (at + 1) % len(self._urls)
                if pause is None:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1))
        raise AssertionError("the last try returns or raises")

    async def follow(self, type: str, ids: Sequence[str]) -> AsyncIterator[Change]:
        """The present states of jobs, then each change, until all are finished, dead or removed.

        Raises `ConnectionError` if the service stops, or cannot be reached any more, before."""
        request: Request[Change] = Request("GET", path(type, "_feed", ids=ids))
        text, is_over = b"", False
        async with self._sent(request, b"", None) as (status, headers, pieces):
            while piece := await asyncio.wait_for(anext(pieces, b""), SILENT_SEC):
                *lines, text = (text + piece).split(b"\n") if status == 200 else [text + piece]
                for line in lines:
                    # The last event has an id.
                    is_over = is_over or line.startswith(b"id:")
                    if line.startswith(b"data:"):
                        yield _parse(line[5:])
            if status != 200:
                _read(request, status, headers, text)
            if not is_over:
                raise ConnectionError("the service has ended the feed: follow the jobs again")

    async def close(self) -> None:
        """Closes idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    @contextlib.asynccontextmanager
    async def _sent(self, request: Request[Any], body: bytes, timeout_sec: float | None) -> AsyncIterator[Response]:
        """Sends a request and reads the head of the response. A feed, without a timeout, or only once, on a new connection."""
        url = self._urls[self._at]
        try:
            async with asyncio.timeout(timeout_sec or SILENT_SEC) as limit:
                streams = self._idle.pop() if self._idle and timeout_sec and request.is_repeatable else await self._open(url)
                try:
                    streams[1].write(self._head(url, request, len(body)) + body)
                    await streams[1].drain()
                    status, *fields = (await streams[0].readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
                    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
                    # Each piece of a feed has a limit of its own.
                    limit.reschedule(timeout_sec and limit.when())
                    yield int(status.split()[1]), headers, _body(streams[0], headers)
                except BaseException:
                    streams[1].close()
                    raise
        except (OSError, EOFError, ValueError) as error:
            raise ConnectionError(f"cannot reach {url.netloc.rpartition('@')[2]}: {error!r}") from error
        if headers.get("connection", "").lower() == "close" or url != self._urls[self._at]:
            streams[1].close()
        else:
            self._idle.append(streams)

    async def _open(self, url: SplitResult) -> Streams:
        tls = self._tls if url.scheme == "https" else None
        return await asyncio.open_connection(url.hostname, url.port or (443 if tls else 80), ssl=tls)

    def _head(self, url: SplitResult, request: Request[Any], length: int) -> bytes:
        headers = {"Host": url.netloc.rpartition("@")[2], "Content-Type": "application/json"}
        if url.username is not None:
            login = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        headers |= {"Content-Length": str(length), **self._headers, **request.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{request.method} {url.path.rstrip('/')}{request.path} HTTP/1.1\r\n{lines}\r\n".encode()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        headers["connection"] = "close"
        yield await reader.read()


def _parse(text: bytes) -> Any:
    """Integers that are too long for `int` are decimals."""
    try:
        return json.loads(text)
    except ValueError:
        # Shorter ones always have an `int`.
        return json.loads(text, parse_int=lambda digits: Decimal(digits) if len(digits) > 640 else int(digits))


def _read(request: Request[T], status: int, headers: dict[str, str], body: bytes) -> T:
    try:
        answer = _parse(body)
    except ValueError:
        # From a proxy.
        status, answer = max(status, 400), {"error": "unexpected_response", "reason": body[:200].decode("utf-8", "replace")}
    if status < 400:
        return None if request.member == "" else answer[request.member] if request.member else answer  # type: ignore
    after = headers.get("retry-after", "")
    raise ServiceError(status, str(answer.get("error")), str(answer.get("reason")), float(after) if after.isdigit() else None)


class Client(Requests):
    """A client for any number of threads. Its connections are in an event loop of a thread of its own."""

    def __init__(self, url: str | Sequence[str], **options: Unpack[Options]) -> None:
        self._make = functools.partial(AsyncClient, url, **options)
        self._make()
        self._lock, self._process = threading.Lock(), 0

    def send(self, request: Request[T]) -> T:
        """Makes a request. Raises `ServiceError`, or `ConnectionError` if the service cannot be reached."""
        return self._run(self._started().send(request))

    def follow(self, type: str, ids: Sequence[str]) -> Iterator[Change]:
        """The present states of jobs, then each change, until all are finished, dead or removed."""
        changes = self._started().follow(type, ids)

        async def following() -> Change | None:
            return await anext(changes, None)

        while change := self._run(following()):
            yield change

    def close(self) -> None:
        if self._process == os.getpid():
            self._run(self._client.close())

    def _started(self) -> AsyncClient:
        with self._lock:
            # A fork has no threads.
            if self._process != os.getpid():
                self._process, self._client, self._loop = os.getpid(), self._make(), asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="davenport-jobs", daemon=True).start()
        return self._client

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        running = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise
