"""A worker: claims jobs, runs a handler, sends heartbeats, and ends the runs."""

from __future__ import annotations

import asyncio
import contextlib
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
from typing import Any

from ._client import AsyncClient, Client, ServiceError, T
from ._types import Claimed, Ended

log = logging.getLogger("davenport_jobs")
BEATS_MAX = 500
# Between heartbeats with progress, between tries to reach the service or to wait for a job, and for last reports after `grace_sec`.
PROGRESS_SEC, UNREACHABLE_SEC, LAST_SEC = 0.5, 5.0, 10.0


class Again(Exception):
    """Raised by a handler: the job is to run again, which is not a failure."""

    def __init__(self, delay_sec: float = 0) -> None:
        self.delay_sec = delay_sec


class Failed(Exception):
    """Raised by a handler: the run failed with this error, any JSON, and is retried after this delay, or not at all."""

    def __init__(self, error: Any, delay_sec: float | None = None, *, retry: bool = True) -> None:
        super().__init__(error)
        self.error, self.delay_sec, self.retry = error, delay_sec, retry


class Halted(Exception):
    """The job is no longer this worker's."""


class Job:
    """A job of a handler. `progress` is what an earlier attempt reported last."""

    def __init__(self, claimed: Claimed, timeout_sec: float) -> None:
        self.id, self.data = claimed["id"], claimed["data"]
        self.attempt, self.failures, self.progress = claimed["attempt"], claimed["failures"], claimed.get("progress")
        # If superseded, there is newer data: the job will run again, and this run may end early.
        self.superseded = self.halted = self._is_lost = False
        self._lock, self._promised_sec, self._held_until = claimed["lock"], timeout_sec, time.monotonic() + timeout_sec
        self._reports: list[Any] = []
        self._task: asyncio.Task[Any]
        # Held while a heartbeat is sent: none overtakes another. Unlike a lock, it is also locked once it is promised to a waiter.
        self._beating = asyncio.Semaphore()

    def report(self, progress: Any) -> None:
        """Stores progress, any JSON, with the next heartbeat: within about a second. Raises `Halted` if the job is lost."""
        self.check()
        self._reports.append(progress)

    def check(self) -> None:
        """Raises `Halted` if the job is lost. Handlers that are no coroutines should call it often."""
        if self.halted:
            raise Halted(self.id)

    def _ended(self, outcome: Any, **rest: Any) -> Ended:
        return {"id": self.id, "lock": self._lock, "outcome": outcome, **rest}  # type: ignore[typeddict-item]


class Worker:
    """Runs `handler` for jobs of a type, `concurrency` at a time: a coroutine in a task, any other in a thread.

    What the handler returns is the result. If it raises, the run has failed."""

    def __init__(
        self, client: Client | AsyncClient, type: str, handler: Callable[[Job], Any], *, concurrency: int = 1,
        name: str | None = None, wait_sec: float = 60, grace_sec: float = 30,
    ) -> None:  # fmt: skip
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        self._make: Callable[[], AsyncClient] = client._make
        self.type, self.handler, self.concurrency, self.wait_sec, self.grace_sec = type, handler, concurrency, wait_sec, grace_sec
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._is_async = any(map(inspect.iscoroutinefunction, (handler, getattr(handler, "__call__", None))))
        self._loop: asyncio.AbstractEventLoop | None = None
        # Until the service knows how they ended.
        self._running: set[Job] = set()
        # What the service promised last; at first, the shortest that a type can have. Earlier promises to jobs may be shorter.
        self._timeout_sec, self._stopped = 1.0, False

    def run(self) -> None:
        """Works until `stop`, SIGTERM or SIGINT."""
        asyncio.run(self.serve(signals=True))

    def stop(self) -> None:
        """Claims no more jobs; running ones have `grace_sec` to end. May be called in any thread."""
        self._stopped = True
        if self._loop:
            # It is closed if the worker has ended.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, signals: bool = False) -> None:
        """Works until `stop`. Raises `ServiceError` if the service refuses to give jobs."""
        self._client, self._loop, self._stopping = self._make(), asyncio.get_running_loop(), asyncio.Event()
        if self._stopped:
            self._stopping.set()
        signals = signals and os.name == "posix" and threading.current_thread() is threading.main_thread()
        for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
            self._loop.add_signal_handler(number, self._drain, number)
        slots = [asyncio.create_task(self._slot()) for _ in range(self.concurrency)]
        self._stop_task = asyncio.create_task(self._stopping.wait())
        others = [asyncio.create_task(self._beats()), self._stop_task]
        try:
            await asyncio.wait([*others, *slots], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            await asyncio.wait(slots, timeout=self.grace_sec)
            for job in self._running:
                job._task.cancel()
            await asyncio.wait(slots, timeout=LAST_SEC)
            await asyncio.gather(*(task for task in (*slots, others[0]) if task.done()))
        finally:
            for task in (*others, *slots, *(job._task for job in self._running)):
                task.cancel()
            await asyncio.gather(*others, *slots, return_exceptions=True)
            await self._client.close()

    def _drain(self, number: int) -> None:
        self._stopping.set()
        # The next signal ends the process.
        asyncio.get_running_loop().remove_signal_handler(number)

    async def _slot(self) -> None:
        """Works on one job after another. The end of one and the claim of the next are one request."""
        job: Any = None
        ended: Ended | None = None
        while ended or not self._stopping.is_set():
            if not ended:
                self._running.discard(job)
            claim: Any = {} if self._stopping.is_set() else {"claim": 1, "worker": self.name}
            # The end of a run is answered at once.
            asked, wait_sec = time.monotonic(), 0 if ended else self.wait_sec
            try:
                call = self._client.finish(self.type, [ended] if ended else [], wait_sec=wait_sec, **claim)
                reply = await self._unless_stopping(call)
            except (ConnectionError, ServiceError, TypeError, ValueError, RecursionError) as error:
                if _is_passing(error):
                    log.warning("%s; trying again", error)
                    await self._unless_stopping(asyncio.sleep(UNREACHABLE_SEC * random.uniform(0.5, 1)))
                elif ended and not (isinstance(error, ServiceError) and error.status in (401, 403, 404)):
                    ended = self._refused(ended, error)
                else:
                    raise
                continue
            # If it was interrupted, it is unknown whether the run has ended. Repeating the request does no harm.
            if reply:
                if ended and reply["results"][0]["status"] == "halt":
                    log.warning("%s is no longer this worker's: the end of its run was ignored", ended["id"])
                ended = None
                self._timeout_sec = reply["timeout_sec"]
                self._running.discard(job)
                for claimed in reply["jobs"]:
                    job = Job(claimed, self._timeout_sec)
                    ended = await self._work(job)
                if not reply["jobs"] and time.monotonic() - asked < min(1, wait_sec):
                    # Too many claims wait already.
                    await self._unless_stopping(asyncio.sleep(UNREACHABLE_SEC * random.uniform(0.5, 1)))

    def _refused(self, ended: Ended, error: Exception) -> Ended | None:
        """How a run ends instead, for example because its result is too large."""
        log.error("cannot end the run of %s as %s: %s", ended["id"], ended["outcome"], error)
        if ended["outcome"] != "failed":
            return Ended(id=ended["id"], lock=ended["lock"], outcome="failed", error=getattr(error, "reason", str(error))[:1000])
        parts = [part for part in ("error", "delay_sec") if ended.get(part) is not None]
        # A bad delay is a bad request; an error that is refused is more often too large, or no JSON.
        return {**ended, parts[-1 if getattr(error, "status", 0) == 400 else 0]: None} if parts else None  # type: ignore[return-value]

    async def _unless_stopping(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Gives a call up when the worker is told to stop. Later calls, which end runs, and their pauses are not cut short."""
        if self._stopping.is_set():
            return await call
        task = asyncio.create_task(call)
        try:
            await asyncio.wait([task, self._stop_task], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()

    async def _work(self, job: Job) -> Ended | None:
        """Runs the handler; `None` if the job was lost."""
        job._task = asyncio.create_task(self._handle(job))
        self._running.add(job)
        await asyncio.wait([job._task])
        job.halted = True
        if job._is_lost:
            log.warning("%s is no longer this worker's: its run was halted", job.id)
            return None
        while job._reports and (job._task.cancelled() or job._task.exception()):
            # The next run starts from it.
            await self._beat([job], waits=True)
            await asyncio.sleep(PROGRESS_SEC if job._reports else 0)
        if job._task.cancelled():
            if self._stopping.is_set():
                return job._ended("again")
            return job._ended("failed", error={"message": "the handler was cancelled", "type": "CancelledError"})
        match job._task.exception():
            case None:
                return job._ended("done", result=job._task.result())
            case Again() as again:
                return job._ended("again", delay_sec=again.delay_sec)
            case Failed() as failed:
                return job._ended("failed", error=failed.error, delay_sec=failed.delay_sec, retry=failed.retry)
            case error:
                log.error("%s failed", job.id, exc_info=error)
                return job._ended("failed", error={"message": str(error) or repr(error), "type": type(error).__name__})

    async def _handle(self, job: Job) -> Any:
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()

        def work() -> None:
            try:
                done.set_result(self.handler(job))
            except BaseException as error:
                done.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

        try:
            if self._is_async:
                return await self.handler(job)
            threading.Thread(target=work, name=f"{self.type}/{job.id}", daemon=True).start()
            return await asyncio.wrap_future(done)
        except (SystemExit, KeyboardInterrupt) as error:
            # They would end the event loop, and with it the other runs.
            raise RuntimeError(repr(error)) from error

    async def _beats(self) -> None:
        beaten = time.monotonic()
        async with asyncio.TaskGroup() as beats:
            while True:
                pause = min(PROGRESS_SEC, self._timeout_sec / 6)
                await asyncio.sleep(pause)
                for job in self._running:
                    # Another worker may have it by now.
                    if time.monotonic() > job._held_until and not job._is_lost:
                        job.halted = job._is_lost = True
                        if self._is_async:
                            job._task.cancel()
                # This worker would throw away the results of those that are lost.
                held = [job for job in self._running if not job._is_lost and not job._beating.locked()]
                is_due = time.monotonic() - beaten >= self._least_sec(held) / 3 - pause
                beaten = time.monotonic() if is_due else beaten
                jobs = [job for job in held if is_due or job._reports]
                for at in range(0, len(jobs), BEATS_MAX):
                    beats.create_task(self._beat(jobs[at : at + BEATS_MAX]))

    def _least_sec(self, jobs: Sequence[Job]) -> float:
        """The shortest timeout that the service may have promised to these jobs."""
        return min([self._timeout_sec, *(job._promised_sec for job in jobs)])

    async def _beat(self, jobs: Sequence[Job], waits: bool = False) -> None:
        """Sends heartbeats. Unless it waits, it leaves out jobs with a heartbeat under way, which would delay the others."""
        if jobs := [job for job in jobs if waits or not job._beating.locked()]:
            async with contextlib.AsyncExitStack() as beating:
                for job in jobs:
                    await beating.enter_async_context(job._beating)
                await self._send_beats(jobs)

    async def _send_beats(self, jobs: Sequence[Job], with_progress: bool = True) -> None:
        sent, counts = time.monotonic(), [len(job._reports) if with_progress else 0 for job in jobs]
        progress = [{"progress": job._reports[count - 1]} if count else {} for job, count in zip(jobs, counts)]
        beats: list[Any] = [{"id": job.id, "lock": job._lock, **last} for job, last in zip(jobs, progress)]
        try:
            reply = await self._client.beat(self.type, beats, timeout_sec=self._least_sec(jobs) / 3)
        except (OSError, ServiceError, TypeError, ValueError, RecursionError) as error:
            log.warning("heartbeats of %d jobs: %r", len(jobs), error)
            # Progress that is refused is not sent again, and does not cost the worker its jobs.
            if any(counts) and not _is_passing(error):
                for job, count in zip(jobs, counts):
                    del job._reports[:count]
                await self._send_beats(jobs, with_progress=False)
            return
        # Older versions of the service omit it.
        self._timeout_sec = reply.get("timeout_sec", self._timeout_sec)
        for job, count, row in zip(jobs, counts, reply["jobs"]):
            del job._reports[:count]
            if "reason" in row:
                log.warning("progress of %s was refused: %s", job.id, row["reason"])
            job.superseded = row["status"] == "again"
            job._promised_sec = self._timeout_sec
            job._held_until = 0.0 if row["status"] == "halt" else sent + self._timeout_sec


def _is_passing(error: Exception) -> bool:
    """Whether the same request may be answered later."""
    return isinstance(error, OSError) or isinstance(error, ServiceError) and (error.status >= 500 or error.status in (408, 429))
