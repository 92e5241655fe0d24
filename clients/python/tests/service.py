"""The real service: the program that DAVENPORT names."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from davenport_jobs import Client

T = TypeVar("T")
PACKAGE = Path(__file__).resolve().parent.parent
LONG_SEC = 60


class Service:
    """A service with a store of its own. `kill` and `start` again keep its port and data."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._directory = tempfile.TemporaryDirectory(prefix="davenport-")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://root:s3cret@127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        directory = Path(self._directory.name)
        with open(directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    os.environ["DAVENPORT"], "serve", "--store", f"lmdb:{directory}/data", "--admin", "root:s3cret",
                    "--listen", f"127.0.0.1:{self.port}", "--set", "log.level=warn",
                    *self._options,
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        until(self._is_up)

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError((Path(self._directory.name) / "log").read_text())
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/_up") as up:
                return bool(up.status == 200)
        except OSError:
            return False

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._directory.cleanup()


class Proxy:
    """A proxy in front of a service. While it hangs, connections stay open, but nothing is passed on."""

    def __init__(self, service: Service) -> None:
        self._service, self.hangs, self._sockets = service, False, [socket.create_server(("127.0.0.1", 0))]
        self.url = service.url.replace(str(service.port), str(self._sockets[0].getsockname()[1]))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ends = self._sockets[0].accept()[0], socket.create_connection(("127.0.0.1", self._service.port))
                self._sockets += ends
                for source, target in (ends, ends[::-1]):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if not self.hangs:
                    target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def until(met: Callable[[], T | None]) -> T:
    """Asks again until the answer is true."""
    for _ in range(LONG_SEC * 50):
        if answer := met():
            return answer
        time.sleep(0.02)
    raise AssertionError("it did not come true in time")


class Program:
    """A program in Python that uses the package."""

    def __init__(self, source: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE / "src")}
        self.process = subprocess.Popen([sys.executable, "-c", source, *arguments], env=environment)

    def signal(self, number: signal.Signals) -> int:
        """Sends a signal and returns how the program ended."""
        self.process.send_signal(number)
        return self.process.wait(LONG_SEC)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class ServiceCase(unittest.TestCase):
    """Tests that share a service, each with a type of its own."""

    service: Service
    made = 0

    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)

    def setUp(self) -> None:
        ServiceCase.made += 1
        self.type = f"t{ServiceCase.made}"
        self.client = Client(self.service.url)
        self.addCleanup(self.client.close)
        self.client.put_type(self.type, retry={"delay_sec": 0, "limit": 2}, timeout_sec=1)
