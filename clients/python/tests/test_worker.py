from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import time
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

from davenport_jobs import Again, AsyncClient, Client, Failed, Halted, Job, ServiceError, Worker
from service import Program, Proxy, Service, ServiceCase, until

PROGRAM = """
import sys, time
from davenport_jobs import Client, Worker
def handle(job):
    time.sleep(job.data)
    return job.attempt
Worker(Client(sys.argv[1]), sys.argv[2], handle, concurrency=2, name=sys.argv[3]).run()
"""


@contextlib.contextmanager
def working(worker: Worker) -> Iterator[None]:
    """A worker in a thread, until the end of the block."""
    thread = threading.Thread(target=lambda: asyncio.run(worker.serve()))
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


class TestWorker(ServiceCase):
    def setUp(self) -> None:
        super().setUp()
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)

    def end(self, id: str) -> Any:
        return self.client.wait(self.type, id, 60)

    def test_results_of_threads_and_coroutines(self) -> None:
        async def square(job: Job) -> int:
            return job.data * job.data  # type: ignore[no-any-return]

        for handler in (lambda job: job.data * job.data, square):
            ids = [self.client.enqueue(self.type, n) for n in range(20)]
            with working(Worker(self.client, self.type, handler, concurrency=4)):
                self.assertEqual([self.end(id)["result"] for id in ids], [n * n for n in range(20)])

    def test_concurrent_handlers(self) -> None:
        together = threading.Barrier(3)
        ids = [self.client.enqueue(self.type, n) for n in range(3)]
        with working(Worker(self.client, self.type, lambda job: together.wait(60), concurrency=3)):
            self.assertEqual(sorted(self.end(id)["result"] for id in ids), [0, 1, 2])

    def test_failures_are_retried_until_the_job_is_dead(self) -> None:
        def handle(job: Job) -> None:
            raise {1: ValueError("first"), 2: Failed({"code": 7, "message": "second"}, 0), 3: StopIteration()}[job.attempt]

        id = self.client.enqueue(self.type, 1)
        with working(Worker(self.client, self.type, handler=handle)):
            job = self.end(id)
        self.assertEqual((job["state"], job["error"]["type"]), ("dead", "RuntimeError"))
        self.assertEqual([run["reason"] for run in job["attempts"]][:2], ["first", "second"])

    def test_a_bad_delay_costs_no_error(self) -> None:
        for delay_sec in (-1, 1e12):

            def handle(job: Job, delay_sec: float = delay_sec) -> None:
                raise Failed("no route", delay_sec, retry=False)

            with working(Worker(self.client, self.type, handle)):
                job = self.end(self.client.enqueue(self.type, 1))
            self.assertEqual((job["state"], job["error"]), ("dead", "no route"))

    def test_a_worker_has_a_job_at_a_time_at_least(self) -> None:
        with self.assertRaises(ValueError):
            Worker(self.client, self.type, lambda job: None, concurrency=0)

    def test_a_handler_that_exits_has_failed(self) -> None:
        async def leave(job: Job) -> None:
            sys.exit(2)

        for handler in (lambda job: sys.exit(2), leave):
            with working(Worker(self.client, self.type, handler)):
                job = self.end(self.client.enqueue(self.type, 1))
            self.assertEqual((job["state"], job["error"]["message"]), ("dead", "SystemExit(2)"))

    def test_a_job_may_run_again(self) -> None:
        def handle(job: Job) -> int:
            if job.attempt == 1:
                raise Again()
            return job.failures

        id = self.client.enqueue(self.type, 1)
        with working(Worker(self.client, self.type, handle)):
            self.assertEqual(self.end(id)["result"], 0)

    def test_results_that_cannot_be_stored_are_failures(self) -> None:
        self.client.put_type(self.type, max_data_bytes=1_000, retry={"limit": 0})
        ids = [self.client.enqueue(self.type, kind) for kind in ("large", "no json", "not a number")]
        results = {"large": "x" * 1_001, "no json": object(), "not a number": float("nan")}
        with working(Worker(self.client, self.type, lambda job: results[job.data])):
            ends = [self.end(id) for id in ids]
        self.assertEqual([end["state"] for end in ends], ["dead"] * 3)
        self.assertIn("max_data_bytes", ends[0]["error"])

    def test_failures_whose_error_cannot_be_stored_are_failures(self) -> None:
        self.client.put_type(self.type, max_data_bytes=50, retry={"limit": 0})
        with working(Worker(self.client, self.type, lambda job: "x" * 51)):
            job = self.end(self.client.enqueue(self.type, 1))
        self.assertEqual((job["state"], job["error"]), ("dead", None))

        def refuse(job: Job) -> None:
            raise Failed("x" * 51, retry=False)

        self.client.put_type(self.type, max_data_bytes=50)
        with working(Worker(self.client, self.type, refuse)):
            job = self.end(self.client.enqueue(self.type, 1))
        self.assertEqual((job["state"], len(job["attempts"])), ("dead", 1))

    def test_a_cancelled_handler_has_failed(self) -> None:
        async def handle(job: Job) -> None:
            raise asyncio.CancelledError

        with working(Worker(self.client, self.type, handle)):
            job = self.end(self.client.enqueue(self.type, 1))
        self.assertEqual((job["state"], job["error"]["type"]), ("dead", "CancelledError"))

    def test_progress_that_cannot_be_stored_costs_no_job(self) -> None:
        self.client.put_type(self.type, max_data_bytes=100, timeout_sec=1)

        def handle(job: Job) -> int:
            # Three times as long as a silent worker has.
            for _ in range(30):
                if job.data == "loud":
                    job.report("x" * 101)
                time.sleep(0.1)
            return job.attempt

        ids = [self.client.enqueue(self.type, data) for data in ("loud", "quiet")]
        with working(Worker(self.client, self.type, handle, concurrency=2)):
            self.assertEqual([self.end(id)["result"] for id in ids], [1, 1])

    def test_heartbeats_keep_a_job_and_store_progress(self) -> None:
        may_end = threading.Event()

        def handle(job: Job) -> Any:
            job.report({"percent": 50})
            may_end.wait(60)
            return job.progress

        with working(Worker(self.client, self.type, handle)):
            seen = self.client.follow(self.type, [self.client.enqueue(self.type, 1, id="long")])
            next(change for change in seen if change.get("progress") == {"percent": 50})
            # Three times as long as a silent worker has.
            time.sleep(3)
            self.assertEqual(self.client.get(self.type, "long")["state"], "running")
            may_end.set()
            self.assertEqual(len(self.end("long")["attempts"]), 1)

    def test_the_next_attempt_knows_the_progress(self) -> None:
        def handle(job: Job) -> Any:
            if job.attempt > 1:
                return job.progress
            job.report(7)
            until(lambda: self.client.get(self.type, job.id)["progress"])
            raise ValueError("later")

        with working(Worker(self.client, self.type, handle)):
            self.assertEqual(self.end(self.client.enqueue(self.type, 1))["result"], 7)

    def test_progress_is_kept_however_a_run_ends(self) -> None:
        def handle(job: Job) -> Any:
            position = (job.progress or 0) + 1
            job.report(position)
            if job.attempt < 3:
                raise {1: Again(), 2: Failed("later", 0)}[job.attempt]
            return position

        with working(Worker(self.client, self.type, handle)):
            job = self.end(self.client.enqueue(self.type, 1))
        self.assertEqual((job["result"], len(job["attempts"])), (3, 3))

    def test_a_changed_timeout_costs_no_job(self) -> None:
        def handle(job: Job) -> int:
            time.sleep(job.data)
            return job.attempt

        for before, after in ((6, 1), (1, 60)):
            self.client.put_type(self.type, timeout_sec=before)
            with working(Worker(self.client, self.type, handle, concurrency=2)):
                id = self.client.enqueue(self.type, 5)
                until(lambda: self.client.get(self.type, id)["state"] == "running")
                self.client.put_type(self.type, timeout_sec=after)
                if after > before:
                    # The claim of another job tells the worker of the longer timeout.
                    until(lambda: self.client.type_info(self.type)["settings"]["timeout_sec"] == after)
                    self.assertEqual(self.end(self.client.enqueue(self.type, 0))["result"], 1)
                self.assertEqual(self.end(id)["result"], 1, (before, after))

    def test_heartbeats_go_to_the_next_frontend_if_one_hangs(self) -> None:
        proxy = Proxy(self.service)
        self.addCleanup(proxy.close)
        self.client.put_type(self.type, timeout_sec=3)
        id = self.client.enqueue(self.type, 1)

        def handle(job: Job) -> int:
            proxy.hangs = True
            time.sleep(6)
            return job.attempt

        client = Client([proxy.url, self.service.url])
        with working(Worker(client, self.type, handle)):
            self.assertEqual([run["outcome"] for run in self.end(id)["attempts"]], ["done"])

    def test_a_run_is_kept_until_the_next_frontend_knows_how_it_ended(self) -> None:
        proxy = Proxy(self.service)
        self.addCleanup(proxy.close)
        id = self.client.enqueue(self.type, 1)

        def handle(job: Job) -> int:
            proxy.hangs = True
            return job.attempt

        # Longer than a silent worker has.
        client = Client([proxy.url, self.service.url], timeout_sec=4)
        with working(Worker(client, self.type, handle)):
            self.assertEqual([run["outcome"] for run in self.end(id)["attempts"]], ["done"])

    def test_a_removed_job_is_halted(self) -> None:
        begun, halted = threading.Event(), threading.Event()

        def in_thread(job: Job) -> None:
            begun.set()
            try:
                while True:
                    job.check()
                    time.sleep(0.01)
            except Halted:
                halted.set()
                raise

        async def in_task(job: Job) -> None:
            begun.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                halted.set()
                raise

        for handler in (in_thread, in_task):
            with working(Worker(self.client, self.type, handler)):
                id = self.client.enqueue(self.type, 1)
                self.assertTrue(begun.wait(60))
                self.client.remove(self.type, id)
                self.assertTrue(halted.wait(60))
            begun.clear()
            halted.clear()

    def test_newer_data_supersedes_a_run(self) -> None:
        def handle(job: Job) -> Any:
            if job.data == "old":
                self.client.enqueue(self.type, "new", id=job.id)
                until(lambda: job.superseded)
            return job.data

        with working(Worker(self.client, self.type, handle)):
            self.client.enqueue(self.type, "old", id="a")
            until(lambda: self.client.get(self.type, "a")["result"] == "new")

    def test_a_stopped_worker_gives_back_what_it_cannot_end(self) -> None:
        begun = threading.Event()

        async def handle(job: Job) -> None:
            begun.set()
            await asyncio.sleep(600)

        id = self.client.enqueue(self.type, 1)
        with working(Worker(self.client, self.type, handle, grace_sec=0.1)):
            begun.wait(60)
        job = self.client.get(self.type, id)
        self.assertEqual((job["state"], job["failures"]), ("pending", 0))
        self.assertEqual(job["attempts"][-1]["outcome"], "again")

    def test_a_refused_worker_ends(self) -> None:
        with self.assertRaises(ServiceError):
            Worker(self.client, "none", print).run()
        with self.assertRaises(ServiceError):
            Worker(AsyncClient(f"http://127.0.0.1:{self.service.port}"), self.type, print).run()

    def test_a_worker_that_has_ended_may_be_stopped(self) -> None:
        worker = Worker(self.client, self.type, print)
        with working(worker):
            worker.stop()
        worker.stop()

    def test_a_signal_drains(self) -> None:
        id, later = self.client.enqueue(self.type, 1.5), self.client.enqueue(self.type, 0, delay_sec=1)
        worker = Program(PROGRAM, self.service.url, self.type, "drained")
        self.addCleanup(worker.kill)
        until(lambda: self.client.get(self.type, id)["state"] == "running")
        self.assertEqual(worker.signal(signal.SIGTERM), 0)
        self.assertEqual(self.client.get(self.type, id)["result"], 1)
        self.assertEqual(self.client.get(self.type, later)["attempts"], [])

    def test_the_jobs_of_a_killed_worker_run_elsewhere(self) -> None:
        id = self.client.enqueue(self.type, 2)
        killed = Program(PROGRAM, self.service.url, self.type, "killed")
        until(lambda: self.client.get(self.type, id)["state"] == "running")
        killed.kill()
        with working(Worker(self.client, self.type, lambda job: job.attempt, name="other")):
            job = self.end(id)
        runs = [(run["worker"], run["outcome"]) for run in job["attempts"]]
        self.assertEqual((runs, job["result"]), ([("killed", "silent"), ("other", "done")], 2))


class TestRequests(unittest.TestCase):
    """With a fake client instead of a service."""

    def setUp(self) -> None:
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.given = 0

    def claimed(self) -> dict[str, Any]:
        self.given += 1
        job = {"id": str(self.given), "lock": "l", "data": 1, "attempt": 1, "failures": 0}
        return {"results": [], "jobs": [job], "timeout_sec": 60}

    @staticmethod
    def ended() -> dict[str, Any]:
        return {"results": [{"status": "ok"}], "jobs": [], "timeout_sec": 60}

    @staticmethod
    def client(**calls: Any) -> Any:
        client = mock.Mock(close=mock.AsyncMock(), **calls)
        client._make = lambda: client
        return client

    def test_the_end_of_a_run_is_repeated_after_a_pause_while_the_worker_stops(self) -> None:
        ends: list[float] = []

        async def finish(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            if not jobs:
                return self.claimed()
            ends.append(time.monotonic())
            if len(ends) == 1:
                raise ServiceError(500, "planted", "planted")
            return self.ended()

        worker = Worker(self.client(finish=finish), "t", lambda job: worker.stop())
        with mock.patch("davenport_jobs._worker.UNREACHABLE_SEC", 1.0):
            asyncio.run(worker.serve())
        self.assertEqual(len(ends), 2)
        self.assertGreater(ends[1] - ends[0], 0.4)

    def test_progress_is_stored_before_a_run_ends(self) -> None:
        requests: list[Any] = []

        async def finish(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            if not jobs:
                return self.claimed()
            requests.append(jobs[0]["outcome"])
            return self.ended()

        async def beat(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            requests.append(jobs[0].get("progress"))
            if len(requests) < 4:
                raise ConnectionError("planted")
            return {"jobs": [{"id": job["id"], "status": "held"} for job in jobs]}

        def handle(job: Job) -> None:
            job.report(50)
            worker.stop()
            raise Again

        worker = Worker(self.client(finish=finish, beat=beat), "t", handle)
        asyncio.run(asyncio.wait_for(worker.serve(), 10))
        self.assertEqual(requests, [50, 50, 50, 50, "again"])

    def test_reports_of_a_job_do_not_overtake_each_other(self) -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()
        stored: list[Any] = []

        async def finish(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            return self.ended() if jobs else self.claimed()

        async def beat(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            if not begun.is_set():
                begun.set()
                await may_end.wait()
            stored.append(jobs[0].get("progress"))
            return {"jobs": [{"id": job["id"], "status": "held"} for job in jobs]}

        async def handle(job: Job) -> None:
            job.report("older")
            await begun.wait()
            job.report("newer")
            # Later than the next heartbeat would be.
            asyncio.get_running_loop().call_later(0.75, may_end.set)
            worker.stop()
            raise Again

        worker = Worker(self.client(finish=finish, beat=beat), "t", handle)
        asyncio.run(asyncio.wait_for(worker.serve(), 10))
        self.assertEqual([one for one in stored if one], ["older", "newer"])

    def test_heartbeats_that_hang_do_not_delay_others(self) -> None:
        hanging, others = asyncio.Event(), asyncio.Event()

        async def finish(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            if self.given == 1:
                await hanging.wait()
            return self.ended() if jobs else self.claimed()

        async def beat(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            if jobs[0]["id"] == "1":
                hanging.set()
                await others.wait()
            others.set()
            return {"jobs": [{"id": job["id"], "status": "held"} for job in jobs]}

        async def handle(job: Job) -> None:
            job.report(1)
            await others.wait()
            worker.stop()

        worker = Worker(self.client(finish=finish, beat=beat), "t", handle, concurrency=2)
        asyncio.run(asyncio.wait_for(worker.serve(), 10))

    def test_a_batch_of_heartbeats_leaves_out_jobs_with_one_under_way(self) -> None:
        may_end = asyncio.Event()
        sent: list[list[str]] = []

        async def beat(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            sent.append([job["id"] for job in jobs])
            if len(sent) == 1:
                await may_end.wait()
            return {"jobs": [{"id": job["id"], "status": "held"} for job in jobs]}

        async def check() -> None:
            worker = Worker(self.client(beat=beat), "t", print)
            worker._client = worker._make()
            slow, other = (Job(self.claimed()["jobs"][0], 60) for _ in range(2))
            last = [asyncio.create_task(worker._beat([slow], waits=waits)) for waits in (False, True)]
            await asyncio.sleep(0)
            await worker._beat([slow, other])
            await worker._beat([slow])
            may_end.set()
            await asyncio.sleep(0)
            # The first has ended, and the one that waited is next.
            await worker._beat([other, slow])
            await asyncio.gather(*last)

        asyncio.run(asyncio.wait_for(check(), 10))
        self.assertEqual(sent, [["1"], ["2"], ["2"], ["1"]])

    def test_heartbeats_of_many_runs_are_sent_together(self) -> None:
        all_here, together = asyncio.Event(), asyncio.Event()
        sizes: list[int] = []

        async def finish(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            return self.ended() if jobs else self.claimed()

        async def beat(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            sizes.append(len(jobs))
            if len(sizes) == 2:
                together.set()
            await together.wait()
            return {"jobs": [{"id": job["id"], "status": "held"} for job in jobs]}

        async def handle(job: Job) -> None:
            if self.given == 501:
                all_here.set()
            await all_here.wait()
            job.report(1)
            await together.wait()
            worker.stop()

        worker = Worker(self.client(finish=finish, beat=beat), "t", handle, concurrency=501)
        asyncio.run(asyncio.wait_for(worker.serve(), 10))
        self.assertEqual(sizes, [500, 1])

    def test_answers_to_claims_do_not_delay_heartbeats_of_earlier_jobs(self) -> None:
        outcomes: list[str] = []

        async def finish(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            outcomes.extend(job["outcome"] for job in jobs)
            if not jobs and not self.given:
                return {**self.claimed(), "timeout_sec": 1}
            await asyncio.sleep(0.05)
            return self.ended()

        async def beat(type: str, jobs: list[Any], **options: Any) -> dict[str, Any]:
            return {"jobs": [{"id": job["id"], "status": "held"} for job in jobs], "timeout_sec": 1}

        async def handle(job: Job) -> None:
            await asyncio.sleep(3)
            worker.stop()

        worker = Worker(self.client(finish=finish, beat=beat), "t", handle, concurrency=2, wait_sec=0)
        asyncio.run(asyncio.wait_for(worker.serve(), 10))
        self.assertEqual(outcomes, ["done"])


class TestKills(unittest.TestCase):
    def test_a_job_that_was_given_up_runs_elsewhere(self) -> None:
        service = Service()
        self.addCleanup(service.close)
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)
        client = Client(service.url)
        client.put_type("t", timeout_sec=1, retry={"delay_sec": 0})
        begun, given_up, may_end = threading.Event(), threading.Event(), threading.Event()

        def handle(job: Job) -> int:
            if job.attempt == 1:
                begun.set()
                until(lambda: job.halted)
                given_up.set()
                may_end.wait(60)
            return job.attempt

        id = client.enqueue("t", 1)
        with working(Worker(client, "t", handle, concurrency=2)):
            begun.wait(60)
            service.signal(signal.SIGSTOP)
            given_up.wait(60)
            service.signal(signal.SIGCONT)
            self.assertEqual(client.wait("t", id, 60)["result"], 2)
            may_end.set()

    def test_a_worker_whose_claims_cannot_wait_pauses(self) -> None:
        service = Service("--set", "api.waits_max=1")
        self.addCleanup(service.close)
        client = AsyncClient(service.url)

        async def work() -> int:
            await client.put_type("t")
            worker = Worker(client, "t", print, concurrency=3)
            with mock.patch.object(client, "send", wraps=client.send) as send:
                serving = asyncio.create_task(worker.serve())
                await asyncio.sleep(2)
                worker.stop()
                await serving
            return send.call_count

        self.assertLessEqual(asyncio.run(work()), 6)

    def test_a_killed_service_and_killed_workers_lose_no_job(self) -> None:
        service = Service()
        self.addCleanup(service.close)
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)
        adder = Client(service.url)
        adder.put_type("t", timeout_sec=1, retry={"delay_sec": 0, "limit": None})
        workers = [Program(PROGRAM, service.url, "t", f"w{n}") for n in range(2)]
        self.addCleanup(lambda: [worker.kill() for worker in workers])  # type: ignore[func-returns-value]
        ids: list[str] = []
        for kill in range(3):
            ids += [row["id"] or "" for row in adder.enqueue_many("t", [{"data": 0.01}] * 40)]
            service.kill()
            workers[kill % 2].kill()
            service.start()
            workers[kill % 2] = Program(PROGRAM, service.url, "t", f"after{kill}")
        for id in ids:
            self.assertEqual(adder.wait("t", id, 60)["state"], "finished")
        counts = adder.type_info("t")["counts"]
        self.assertEqual(counts, {"pending": 0, "running": 0, "finished": 120, "dead": 0})


if __name__ == "__main__":
    unittest.main()
