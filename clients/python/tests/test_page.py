"""What docs/jobs-http.md and the README show, as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from davenport_jobs import Client, Request
from service import PACKAGE, Program, Service, until

ROOT = PACKAGE.parent.parent
PAGE = ROOT / "docs" / "jobs-http.md"


def blocks(page: Path, heading: str, language: str) -> list[str]:
    """The code under a heading."""
    _, section = re.split(rf"^#+ {re.escape(heading)}$", page.read_text(), maxsplit=1, flags=re.M)
    # A comment in code begins like a heading.
    code = re.findall(r"^```(\w+)\n(.*?)^```|^(#+ )", section, flags=re.M | re.S)
    found: list[str] = []
    for name, block, next_heading in code:
        if next_heading:
            break
        found += [block] if name == language else []
    return found


class TestPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.client = Client(cls.service.url)
        cls.addClassCleanup(cls.client.close)
        (cls.preamble,) = blocks(PAGE, "Recipes", "python")

    service: Service
    client: Client
    preamble: str

    def recipe(self, heading: str, own: str) -> Path:
        """Runs a recipe with functions of the reader; returns the file that they may write to."""
        (source,) = blocks(PAGE, heading, "python")
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        seen = Path(directory.name) / "seen"
        seen.touch()
        source = source.replace("8000", str(self.port)).replace("delay_sec=5", "delay_sec=1")
        os.environ["DAVENPORT_URL"] = self.service.url
        told = f"def tell(*words):\n    with open({str(seen)!r}, 'a') as file: print(*words, file=file)\n"
        program = Program(self.preamble + told + own + source)
        self.addCleanup(program.kill)
        return seen

    port = 0

    def lines(self, seen: Path, count: int) -> list[list[str]]:
        def enough() -> list[list[str]] | None:
            lines = [line.split() for line in seen.read_text().splitlines()]
            return lines if len(lines) >= count else None

        return until(enough)

    def found(self, read: Callable[[], Any]) -> Any:
        def try_again() -> Any:
            try:
                return read()
            except Exception:
                return None

        return until(try_again)

    def finished(self, type: str, id: str) -> Any:
        self.found(lambda: self.client.get(type, id))
        job = self.client.wait(type, id, 60)
        self.assertEqual(job["state"], "finished")
        return job

    def test_quick_start(self) -> None:
        (source,) = blocks(PAGE, "Quick start", "sh")
        source = source.replace("http://admin:password@127.0.0.1:5985", self.service.url)
        *begin, finish, show = source.splitlines()
        lines = [*begin[:-1], 'claimed=$(' + begin[-1].partition("#")[0] + ")", 'echo "$claimed"']
        lines.append("lock=$(echo \"$claimed\" | sed 's/.*\"lock\":\"\\([^\"]*\\)\".*/\\1/')")
        lines += [finish.replace("LOCK OF THE CLAIM", "'$lock'"), show]
        out = subprocess.run(["sh", "-ec", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(out.splitlines()[-1])["state"], "finished", out)
        (source,) = blocks(PAGE, "Quick start", "python")
        program = Program(source.replace("http://admin:password@127.0.0.1:5985", self.service.url))
        self.addCleanup(program.kill)
        until(lambda: self.client.get("mail", "to-bob")["result"] == "sent to bob")
        self.assertEqual(program.signal(signal.SIGTERM), 0)

    def test_users_and_api_tokens(self) -> None:
        user, token = blocks(PAGE, "Users and API tokens", "sh")
        make, use = token.splitlines()
        made = f"made=$({make}); made=dvt_${{made##*dvt_}}; made=${{made%%[!-_a-z0-9]*}}"
        use = use.replace("'Authorization: Bearer dvt_mailer-1_…'", '"Authorization: Bearer $made"')
        lines = [f"S={self.service.url}; J='Content-Type: application/json'", user, made, use]
        script = "\n".join(lines).replace("127.0.0.1:5985", f"127.0.0.1:{self.service.port}")
        out = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True).stdout
        claims = [json.loads(line) for line in out.splitlines() if "timeout_sec" in line]
        self.assertEqual([claim["timeout_sec"] for claim in claims], [30, 30], out)

    def test_readmes(self) -> None:
        node = shutil.which("node")
        for readme, heading, language in (
            (ROOT / "README.md", "Run your own jobs", "python"),
            (PACKAGE / "README.md", "davenport-jobs for Python", "python"),
            (ROOT / "clients/javascript/README.md", "davenport-jobs for JavaScript", "js"),
        ):
            (source,) = blocks(readme, heading, language)
            self.assertLessEqual(len([line for line in source.splitlines() if line]), 10)
            source = source.replace("http://admin:secret@127.0.0.1:5985", self.service.url)
            if language == "python":
                worker = Program(source).process
            elif node:
                source = source.replace('"davenport-jobs"', json.dumps(str(ROOT / "clients/javascript/node.js")))
                worker = subprocess.Popen([node, "--input-type=module", "-e", source])
            else:
                continue
            self.addCleanup(worker.wait)
            self.addCleanup(worker.kill)
            self.assertEqual(self.finished("greet", "first")["result"], "Hello, Ada!")
            worker.send_signal(signal.SIGTERM)
            self.assertEqual(worker.wait(60), 0)
            self.client.remove("greet", "first")

    def test_a_worker_with_curl(self) -> None:
        self.client.put_type("mail", timeout_sec=2)
        (source,) = blocks(PAGE, "A worker with curl", "sh")
        source = source.replace("sleep 10", "sleep 0.5")
        own = f"S={self.service.url}; J='Content-Type: application/json'\n"
        own += "send_mail() { case $1 in to-eve) false;; to-fay) sleep 6;; esac; }\n"
        worker = subprocess.Popen(["sh", "-c", own + source], start_new_session=True, stdout=subprocess.DEVNULL)
        self.addCleanup(worker.wait)
        self.addCleanup(os.killpg, worker.pid, signal.SIGKILL)
        for name in ("to-ann", "to-dan", "to-eve"):
            self.client.enqueue("mail", {"jobs": [{"id": "x", "lock": "y"}]}, id=name)
        self.finished("mail", "to-ann")
        self.finished("mail", "to-dan")
        until(lambda: self.client.get("mail", "to-eve")["failures"] == 1)
        # A run goes on when another one is requested.
        self.client.enqueue("mail", None, id="to-fay")
        until(lambda: self.client.get("mail", "to-fay")["state"] == "running")
        self.client.enqueue("mail", None, id="to-fay")
        outcomes = lambda: [run["outcome"] for run in self.client.get("mail", "to-fay")["attempts"] if run["outcome"]]
        self.assertEqual(self.found(outcomes)[0], "done")
        # Other tests claim jobs of this type.
        for name in ("to-eve", "to-fay"):
            self.client.remove("mail", name)

    def test_image_resizing(self) -> None:
        self.recipe("Image resizing with progress", "resize_image = lambda image, width: f'{width}-{image}'\n")
        self.assertEqual(
            self.finished("resize", "cat.jpg")["result"], ["200-cat.jpg", "800-cat.jpg", "1600-cat.jpg"]
        )

    def test_nightly_report(self) -> None:
        seen = self.recipe("Nightly report", "send_report = tell\n")
        id = self.found(lambda: self.client.run_schedule("nightly"))
        self.assertEqual(self.lines(seen, 1), [[id]])
        schedule = self.client.send(Request[Any]("GET", "/_schedules/nightly"))
        due = datetime.fromisoformat(schedule["next"]).astimezone(ZoneInfo("Europe/Berlin"))
        self.assertEqual((due.hour, due.minute), (2, 0))
        self.client.remove_schedule("nightly")

    def test_webhook_fan_in(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        seen = self.recipe("Webhook fan-in", "synchronize = tell\n")

        def call(repository: str) -> int:
            body = json.dumps({"repository": repository}).encode()
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}", body) as answer:
                return int(answer.status)

        self.assertEqual(self.found(lambda: call("first")), 202)
        for _ in range(20):
            call("second")
        names = [name for (name,) in self.lines(seen, 2)]
        self.assertLess(names.count("second"), 20)
        self.assertEqual(set(names), {"first", "second"})
        call("first")
        until(lambda: [name for (name,) in self.lines(seen, 3)].count("first") == 2)

    def test_rate_limited_api(self) -> None:
        own = (
            "import time\ncalls = []\ndef call_partner(n):\n    calls.append(n)\n    tell(n, time.time())\n"
            "    return (429, 0.1) if calls.count(3) == 1 and n == 3 else (200, 0)\n"
        )
        lines = self.lines(self.recipe("Rate-limited API", own), 26)
        times = sorted(float(at) for _, at in lines)
        self.assertEqual(len({n for n, _ in lines}), 25)
        # 26 starts at 10 per second.
        self.assertGreater(times[-1] - times[0], 1.0)

    def test_one_job_per_customer(self) -> None:
        # Each job of a customer waits for one of the other.
        own = (
            "from threading import Barrier\nboth = Barrier(2)\ndef write_invoice(customer):\n"
            "    tell('+', customer)\n    both.wait(60)\n    tell('-', customer)\n"
        )
        running: set[str] = set()
        for sign, customer in self.lines(self.recipe("One job per customer", own), 20):
            if sign == "+":
                self.assertNotIn(customer, running)
                running.add(customer)
            else:
                running.remove(customer)
        self.assertEqual(running, set())


if __name__ == "__main__":
    unittest.main()
