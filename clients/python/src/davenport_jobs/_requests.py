"""The requests of the queue's API. Both clients have them as methods."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, List, Literal, NotRequired, ParamSpec, Required
from typing import TypedDict, TypeVar, overload
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from ._client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")
State = Literal["pending", "running", "finished", "dead"]
Class = Literal["urgent", "normal", "bulk"]
OnExists = Literal["replace", "keep", "earliest"]

NewJob = TypedDict("NewJob", {
    "data": Required[Any], "id": str, "delay_sec": float, "due": str, "class": Class, "tenant": str, "key": str,
    "on_exists": OnExists,
}, total=False)  # fmt: skip
# The answer for one of many new jobs: `ok`, or `error` and `reason`.
Added = TypedDict("Added", {"id": str | None, "ok": NotRequired[bool], "error": NotRequired[str], "reason": NotRequired[str]})
Claimed = TypedDict("Claimed", {
    "id": str, "lock": str, "attempt": int, "failures": int, "data": Any, "progress": NotRequired[Any], "deadline": str,
})  # fmt: skip
Claim = TypedDict("Claim", {"jobs": List[Claimed], "timeout_sec": float})
Beat = TypedDict("Beat", {"id": str, "lock": str, "progress": NotRequired[Any]})
Beaten = TypedDict("Beaten", {"id": str, "status": Literal["held", "halt", "again"], "deadline": str | None})
Beats = TypedDict("Beats", {"jobs": List[Beaten], "drain": bool})
Ended = TypedDict("Ended", {
    "id": str, "lock": str, "outcome": Literal["done", "failed", "again"], "result": NotRequired[Any], "error": NotRequired[Any],
    "delay_sec": NotRequired[float],
})  # fmt: skip
Finished = TypedDict("Finished", {"id": str, "status": Literal["ok", "repeated", "halt"]})
Finish = TypedDict("Finish", {"results": List[Finished], "jobs": List[Claimed], "timeout_sec": float})
Attempt = TypedDict("Attempt", {
    "worker": str, "start": str, "end": str | None, "reason": str | None,
    "outcome": Literal["done", "failed", "again", "silent", "returned"] | None,
})  # fmt: skip
# A job as `get` and `wait` return it. Listings have data, progress, result and error only if asked for them.
JobInfo = TypedDict("JobInfo", {
    "id": str, "type": str, "state": State, "due": str, "created": str, "finished": str | None, "expires": str | None,
    "attempt": int, "failures": int, "worker": str | None, "waits_for": str | None, "reason": str | None,
    "data": NotRequired[Any], "progress": NotRequired[Any], "result": NotRequired[Any], "error": NotRequired[Any],
    "attempts": NotRequired[List[Attempt]],
})  # fmt: skip
Page = TypedDict("Page", {"jobs": List[JobInfo], "next": str | None})
# An event of `follow`. A removed job has only `id` and `state`.
Change = TypedDict("Change", {
    "id": str, "state": Literal["pending", "running", "finished", "dead", "removed"], "attempt": NotRequired[int],
    "progress": NotRequired[Any], "result": NotRequired[Any], "error": NotRequired[Any],
})  # fmt: skip
TypeInfo = TypedDict("TypeInfo", {
    "type": str, "internal": bool, "counts": dict[State, int], "totals": dict[str, int], "due": int,
    "waiting_for_limits": int, "oldest_due": str | None, "settings": NotRequired[dict[str, Any]], "paused": NotRequired[bool],
})  # fmt: skip


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request. Its call returns the response; with `member`, only this part of it, or nothing if it is empty."""

    method: str
    path: str
    member: str | None = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_sec: float = 0


class _Method(Generic[P, T]):
    """A function that makes a request, as a method of a client that sends it."""

    def __init__(self, make: Callable[Concatenate[Any, P], Request[T]]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else lambda *args, **kwargs: client.send(self.make(client, *args, **kwargs))


def path(*parts: str, **query: object) -> str:
    url = "/_jobs" + "".join("/" + quote(part, safe="") for part in parts)
    return url + "?" + urlencode(_given(**query), doseq=True) if query else url


def _given(**members: object) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in members.items() if value is not None}


class Requests:
    @_Method
    def put_type(self, type: str, /, **settings: Any) -> Request[None]:
        """Makes a job type, or replaces all its settings."""
        return Request("PUT", path(type), "", settings)

    @_Method
    def types(self) -> Request[List[TypeInfo]]:
        return Request("GET", path(), "types")

    @_Method
    def type_info(self, type: str) -> Request[TypeInfo]:
        return Request("GET", path(type, "_type"))

    @_Method
    def enqueue(
        self, type: str, data: Any, *, id: str | None = None, delay_sec: float | None = None,
        due: datetime | None = None, class_: Class | None = None, tenant: str | None = None, key: str | None = None,
        on_exists: OnExists | None = None, idempotency_key: str | None = None,
    ) -> Request[str]:  # fmt: skip
        """Adds a job and returns its id."""
        if due is not None and due.tzinfo is None:
            raise ValueError("`due` has no time zone")
        when = due and due.isoformat()
        job = _given(id=id, delay_sec=delay_sec, due=when, class_=class_, tenant=tenant, key=key, on_exists=on_exists)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return Request("POST", path(type), "id", {"data": data, **job}, headers)

    @_Method
    def enqueue_many(
        self, type: str, jobs: Sequence[NewJob], *, idempotency_key: str | None = None
    ) -> Request[List[Added]]:
        """Adds up to 500 jobs, of which some may be refused."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return Request("POST", path(type), "results", {"jobs": jobs}, headers)

    @_Method
    def claim(self, type: str, worker: str, *, count: int = 1, wait_sec: float = 0) -> Request[Claim]:
        body = {"worker": worker, "count": count, "wait_sec": wait_sec}
        return Request("POST", path(type, "_claim"), None, body, wait_sec=wait_sec)

    @_Method
    def beat(self, type: str, jobs: Sequence[Beat]) -> Request[Beats]:
        return Request("POST", path(type, "_beat"), None, {"jobs": jobs})

    @_Method
    def finish(
        self, type: str, jobs: Sequence[Ended], *, claim: int = 0, worker: str | None = None, wait_sec: float = 0
    ) -> Request[Finish]:
        """Ends runs; with `claim` and `worker`, also claims jobs in the same transaction."""
        body = {"jobs": jobs, "wait_sec": wait_sec, "claim": claim, **_given(worker=worker)}
        return Request("POST", path(type, "_finish"), None, body, wait_sec=wait_sec)

    @_Method
    def get(self, type: str, id: str) -> Request[JobInfo]:
        return Request("GET", path(type, id))

    @_Method
    def wait(self, type: str, id: str, timeout_sec: float = 30) -> Request[JobInfo]:
        """Returns a job when it is finished or dead, or as it is when the time is over; up to 60 s."""
        return Request("GET", path(type, id, "_wait", timeout_sec=timeout_sec), wait_sec=timeout_sec)

    @_Method
    def list(
        self, type: str, state: State | None = None, *, limit: int = 100, after: str | None = None, data: bool = False
    ) -> Request[Page]:
        """A page of jobs; pass its `next` as `after`."""
        return Request("GET", path(type, state=state, limit=limit, after=after, data=str(data).lower()))

    @_Method
    def remove(self, type: str, id: str) -> Request[None]:
        return Request("DELETE", path(type, id), "")

    @_Method
    def retry(self, type: str, id: str) -> Request[None]:
        """Makes a dead job pending."""
        return Request("POST", path(type, id, "_retry"), "")

    @_Method
    def retry_dead(self, type: str, error: str | None = None) -> Request[int]:
        """Makes all dead jobs pending, or those with this error."""
        return Request("POST", path(type, "_retry"), "count", _given(state="dead", error=error), wait_sec=20)

    @_Method
    def put_schedule(self, name: str, /, **settings: Any) -> Request[str]:
        """Makes or replaces a schedule, and returns when it occurs next."""
        return Request("PUT", "/_schedules/" + quote(name, safe=""), "next", settings)

    @_Method
    def run_schedule(self, name: str) -> Request[str]:
        """Adds a job of a schedule now, and returns its id."""
        return Request("POST", f"/_schedules/{quote(name, safe='')}/_run", "id")

    @_Method
    def remove_schedule(self, name: str) -> Request[None]:
        return Request("DELETE", "/_schedules/" + quote(name, safe=""), "")

    @_Method
    def pause(self, type: str) -> Request[None]:
        return Request("POST", path(type, "_pause"), "")

    @_Method
    def resume(self, type: str) -> Request[None]:
        return Request("POST", path(type, "_resume"), "")
