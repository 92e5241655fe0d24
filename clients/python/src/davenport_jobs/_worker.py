"""A worker: claims jobs, runs a handler, sends heartbeats, and ends the runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ._client import AsyncClient, Client, ServiceError
from ._requests import Beat, Beaten, Claimed, Ended, Finish

T = TypeVar("T")
log = logging.getLogger("davenport_jobs")
BEATS_MAX = 500
# Between heartbeats with progress, and between tries to reach the service.
PROGRESS_SEC, UNREACHABLE_SEC = 1.0, 5.0
# For runs that did not end in time when the worker stops, to be given back.
LAST_SEC = 10.0


class Again(Exception):
    """Raised by a handler: the job is to run again, which is not a failure."""

    def __init__(self, delay_sec: float = 0) -> None:
        self.delay_sec = delay_sec


class Failed(Exception):
    """Raised by a handler: the run failed with this error, any JSON, and is retried after this delay."""

    def __init__(self, error: Any, delay_sec: float | None = None) -> None:
        super().__init__(error)
        self.error, self.delay_sec = error, delay_sec


class Halted(Exception):
    """The job is no longer this worker's."""


class Job:
    """A job of a handler. `progress` is what an earlier attempt reported last."""

    def __init__(self, claimed: Claimed, claimed_at: float, timeout_sec: float, changed: Callable[[], object]) -> None:
        self.id, self.data = claimed["id"], claimed["data"]
        self.attempt, self.failures, self.progress = claimed["attempt"], claimed["failures"], claimed.get("progress")
        # There is newer data: the job will run again, and this run may end early.
        self.superseded = False
        self.halted = False
        self._lock, self._held_until, self._changed = claimed["lock"], claimed_at + timeout_sec, changed
        self._reports: list[Any] = []
        self._task: asyncio.Task[Any] | None = None

    def report(self, progress: Any) -> None:
        """Stores progress, any JSON, with the next heartbeat: within about a second. Raises `Halted` if the job is lost."""
        self.check()
        self._reports.append(progress)
        self._changed()

    def check(self) -> None:
        """Raises `Halted` if the job is lost. Handlers that are no coroutines should call it often."""
        if self.halted:
            raise Halted(self.id)

    def _halt(self, is_async: bool) -> None:
        self.halted = True
        if self._task and is_async:
            self._task.cancel()

    def _ended(self, outcome: Any, **rest: Any) -> Ended:
        return {"id": self.id, "lock": self._lock, "outcome": outcome, **rest}  # type: ignore[typeddict-item]


class Worker:
    """Runs `handler` for jobs of a type, `concurrency` at a time: a coroutine in a task, any other in a thread.

    What the handler returns is the result. If it raises, the run has failed."""

    def __init__(
        self, client: Client | AsyncClient, type: str, handler: Callable[[Job], Any], *, concurrency: int = 1,
        name: str | None = None, wait_sec: float = 60, grace_sec: float = 30,
    ) -> None:  # fmt: skip
        self._make: Callable[[], AsyncClient] = client._make
        self.type, self.handler, self.concurrency = type, handler, concurrency
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.wait_sec, self.grace_sec = wait_sec, grace_sec
        call = getattr(handler, "__call__", None)
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[Job] = set()
        self._timeout_sec = 30.0
        self._stopped = False

    def run(self) -> None:
        """Works until `stop`, SIGTERM or SIGINT."""
        asyncio.run(self.serve(signals=True))

    def stop(self) -> None:
        """Claims no more jobs; running ones have `grace_sec` to end. May be called in any thread."""
        self._stopped = True
        if self._loop:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, signals: bool = False) -> None:
        """Works until `stop`. Raises `ServiceError` if the service refuses to give jobs."""
        self._stopping, self._changed = asyncio.Event(), asyncio.Event()
        self._client, self._loop = self._make(), asyncio.get_running_loop()
        if self._stopped:
            self._stopping.set()
        for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
            try:
                self._loop.add_signal_handler(number, self._drain, number)
            except (NotImplementedError, RuntimeError, ValueError):
                log.debug("signal %d cannot be handled here", number)
        slots = [asyncio.create_task(self._slot()) for _ in range(self.concurrency)]
        others = [asyncio.create_task(self._beats()), asyncio.create_task(self._stopping.wait())]
        try:
            await asyncio.wait([*others, *slots], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            _, late = await asyncio.wait(slots, timeout=self.grace_sec)
            for job in self._running:
                if job._task:
                    job._task.cancel()
            if late:
                await asyncio.wait(late, timeout=LAST_SEC)
            for task in (*slots, others[0]):
                if task.done():
                    task.result()
        finally:
            for task in (*others, *slots):
                task.cancel()
            await asyncio.gather(*others, *slots, return_exceptions=True)
            await self._client.close()

    def _drain(self, number: int) -> None:
        log.info("draining: %d jobs are running", len(self._running))
        self._stopping.set()
        if self._loop:
            # The next signal ends the process.
            self._loop.remove_signal_handler(number)

    async def _slot(self) -> None:
        """Works on one job after another. The end of one and the claim of the next are one request."""
        ended: Ended | None = None
        while job := await self._next(ended):
            self._running.add(job)
            try:
                ended = await self._work(job)
            finally:
                self._running.discard(job)

    async def _next(self, ended: Ended | None) -> Job | None:
        while ended or not self._stopping.is_set():
            ends = [ended] if ended else []
            reply: Finish | None
            try:
                # If it is interrupted, it is unknown whether the run has ended. Repeating the request does no harm.
                if self._stopping.is_set():
                    reply = await self._client.finish(self.type, ends)
                else:
                    claim = self._client.finish(self.type, ends, claim=1, worker=self.name, wait_sec=self.wait_sec)
                    reply = await self._unless_stopping(claim)
            except (ConnectionError, ServiceError, TypeError, ValueError) as error:
                if _is_passing(error):
                    log.warning("%s; trying again", error)
                    await self._unless_stopping(asyncio.sleep(UNREACHABLE_SEC * random.uniform(0.5, 1)))
                elif ended and not (isinstance(error, ServiceError) and error.status in (401, 403, 404)):
                    ended = self._refused(ended, error)
                else:
                    raise
                continue
            if not reply:
                continue
            if ended and reply["results"][0]["status"] == "halt":
                log.warning("%s is no longer this worker's: the end of its run was ignored", ended["id"])
            ended = None
            if reply["timeout_sec"] != self._timeout_sec:
                self._timeout_sec = reply["timeout_sec"]
                self._changed.set()
            for claimed in reply["jobs"]:
                return Job(claimed, time.monotonic(), self._timeout_sec, self._wake)
        return None

    def _wake(self) -> None:
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    def _refused(self, ended: Ended, error: Exception) -> Ended | None:
        """How a run ends instead, for example because its result is too large."""
        log.error("cannot end the run of %s as %s: %s", ended["id"], ended["outcome"], error)
        if "result" not in ended and "error" not in ended:
            return None
        reason = error.reason if isinstance(error, ServiceError) else str(error)
        return Ended(id=ended["id"], lock=ended["lock"], outcome="failed", error=reason[:1000])

    async def _unless_stopping(self, call: Coroutine[Any, Any, T]) -> T | None:
        task, stopping = asyncio.create_task(call), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stopping.cancel()

    async def _work(self, job: Job) -> Ended | None:
        """Runs the handler; `None` if the job was lost."""
        job._task = asyncio.create_task(self._handle(job))
        try:
            await asyncio.wait([job._task])
        finally:
            job._task.cancel()
        was_lost, job.halted = job.halted, True
        if was_lost:
            log.warning("%s is no longer this worker's: its run was halted", job.id)
            return None
        if job._task.cancelled():
            # The worker stops.
            return job._ended("again")
        match job._task.exception():
            case None:
                result = job._task.result()
                return job._ended("done") if result is None else job._ended("done", result=result)
            case Again() as again:
                return job._ended("again", delay_sec=again.delay_sec)
            case Failed() as failed:
                delay = {} if failed.delay_sec is None else {"delay_sec": failed.delay_sec}
                return job._ended("failed", error=failed.error, **delay)
            case error:
                log.error("%s failed", job.id, exc_info=error)
                return job._ended("failed", error={"message": str(error) or repr(error), "type": type(error).__name__})

    async def _handle(self, job: Job) -> Any:
        if self._is_async:
            return await self.handler(job)
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()

        def work() -> None:
            try:
                done.set_result(self.handler(job))
            except StopIteration as error:
                done.set_exception(RuntimeError(repr(error)))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=work, name=f"{self.type}/{job.id}", daemon=True).start()
        return await asyncio.wrap_future(done)

    async def _beats(self) -> None:
        while True:
            period = self._timeout_sec / 3
            try:
                await asyncio.wait_for(self._changed.wait(), period - min(PROGRESS_SEC, period / 2))
            except TimeoutError:
                pass
            self._changed.clear()
            jobs = list(self._running)
            for at in range(0, len(jobs), BEATS_MAX):
                await self._beat(jobs[at : at + BEATS_MAX])
            await asyncio.sleep(min(PROGRESS_SEC, self._timeout_sec / 6))

    async def _beat(self, jobs: Sequence[Job]) -> None:
        sent, reports = time.monotonic(), [len(job._reports) for job in jobs]
        beats = [
            Beat(id=job.id, lock=job._lock, progress=job._reports[-1]) if count else Beat(id=job.id, lock=job._lock)
            for job, count in zip(jobs, reports)
        ]
        rows: list[Beaten] = []
        told = True
        try:
            async with asyncio.timeout(self._timeout_sec / 3):
                rows = (await self._client.beat(self.type, beats))["jobs"]
        except (OSError, ServiceError, TypeError, ValueError) as error:
            log.warning("heartbeats of %d jobs: %r", len(jobs), error)
            # Progress that is refused is not sent again.
            told = not _is_passing(error)
        for job, count in zip(jobs, reports) if told else ():
            del job._reports[:count]
        for job, row in zip(jobs, rows):
            if row["status"] == "halt":
                job._halt(self._is_async)
            else:
                job.superseded, job._held_until = row["status"] == "again", sent + self._timeout_sec
        for job in jobs:
            # Another worker may have it by now.
            if time.monotonic() > job._held_until:
                job._halt(self._is_async)


def _is_passing(error: Exception) -> bool:
    """Whether the same request may be answered later."""
    return isinstance(error, OSError) or (
        isinstance(error, ServiceError) and (error.status >= 500 or error.status in (408, 429))
    )
