"""The requests of the queue's API. Both clients have them as methods."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, List, ParamSpec, TypeVar, overload
from urllib.parse import quote, urlencode

from ._types import Added, Beat, Beats, Claim, Class, Ended, Finish, JobInfo, NewJob, OnExists, Page, Retried, Right
from ._types import ScheduleInfo, Schedules, State, TokenInfo, TypeInfo

if TYPE_CHECKING:
    from ._client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request. Its call returns the response; with `member`, only this part of it, or nothing if it is empty."""

    method: str
    path: str
    member: str | None = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_sec: float = 0
    # Whether it may be repeated if its answer is lost.
    is_repeatable: bool = True
    # How long a try may take in addition to `wait_sec`, if that is less than the client's limit.
    timeout_sec: float = float("inf")


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


def path(*parts: str, root: str = "_jobs", **query: object) -> str:
    if {"", ".", ".."}.intersection(parts):
        raise ValueError("ids and names cannot be empty, `.` or `..`: they are lost in URLs")
    url = "".join("/" + quote(part, safe="") for part in (root, *parts))
    return url + "?" + urlencode(_given(**query), doseq=True) if query else url


def _given(**members: object) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in members.items() if value is not None}


def _key(given: str | None) -> dict[str, str]:
    return {"Idempotency-Key": given or str(uuid.uuid4())}


def _plain(method: str, *tail: str, member: str | None = None, root: str = "_jobs") -> Any:
    """A request without a body. Its arguments are in its path, before the tail."""
    return _Method(lambda client, *args: Request(method, path(*args, *tail, root=root), member))


class Requests:
    types: _Method[[], List[TypeInfo]] = _plain("GET", member="types")
    type_info: _Method[[str], TypeInfo] = _plain("GET", "_type")
    get: _Method[[str, str], JobInfo] = _plain("GET")
    remove: _Method[[str, str], None] = _plain("DELETE", member="")
    # Makes a dead job pending.
    retry: _Method[[str, str], None] = _plain("POST", "_retry", member="")
    pause: _Method[[str], None] = _plain("POST", "_pause", member="")
    resume: _Method[[str], None] = _plain("POST", "_resume", member="")
    schedule: _Method[[str], ScheduleInfo] = _plain("GET", root="_schedules")
    remove_schedule: _Method[[str], None] = _plain("DELETE", member="", root="_schedules")
    tokens: _Method[[], List[TokenInfo]] = _plain("GET", member="tokens", root="_tokens")
    revoke_token: _Method[[str], None] = _plain("DELETE", member="", root="_tokens")

    @_Method
    def put_type(self, type: str, /, **settings: Any) -> Request[None]:
        """Makes a job type, or replaces all its settings."""
        return Request("PUT", path(type), "", settings)

    @_Method
    def enqueue(
        self, type: str, data: Any, *, id: str | None = None, delay_sec: float | None = None,
        due: datetime | None = None, class_: Class | None = None, tenant: str | None = None, key: str | None = None,
        on_exists: OnExists | None = None, idempotency_key: str | None = None,
    ) -> Request[str]:  # fmt: skip
        """Adds a job and returns its id."""
        if due is not None and due.tzinfo is None:
            raise ValueError("`due` has no time zone")
        rest = _given(id=id, delay_sec=delay_sec, due=due and due.isoformat(), class_=class_, tenant=tenant, key=key, on_exists=on_exists)
        return Request("POST", path(type), "id", {"data": data, **rest}, _key(idempotency_key))

    @_Method
    def enqueue_many(
        self, type: str, jobs: Sequence[NewJob], *, idempotency_key: str | None = None
    ) -> Request[List[Added]]:
        """Adds up to 500 jobs, of which some may be refused."""
        return Request("POST", path(type), "results", {"jobs": jobs}, _key(idempotency_key))

    @_Method
    def claim(self, type: str, worker: str, *, count: int = 1, wait_sec: float = 0) -> Request[Claim]:
        body = {"worker": worker, "count": count, "wait_sec": wait_sec}
        return Request("POST", path(type, "_claim"), None, body, wait_sec=wait_sec)

    @_Method
    def beat(self, type: str, jobs: Sequence[Beat], *, timeout_sec: float = float("inf")) -> Request[Beats]:
        """If there is no answer within `timeout_sec`, the next URL is tried."""
        return Request("POST", path(type, "_beat"), None, {"jobs": jobs}, timeout_sec=timeout_sec)

    @_Method
    def finish(
        self, type: str, jobs: Sequence[Ended], *, claim: int = 0, worker: str | None = None, wait_sec: float = 0
    ) -> Request[Finish]:
        """Ends runs; with `claim` and `worker`, also claims jobs in the same transaction."""
        body = {"jobs": jobs, "wait_sec": wait_sec, "claim": claim, **_given(worker=worker)}
        return Request("POST", path(type, "_finish"), None, body, wait_sec=wait_sec)

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
    def retry_dead(self, type: str, error: str | None = None) -> Request[Retried]:
        """Makes all dead jobs pending, or those with this error. With `running`, the service goes on with the others."""
        return Request("POST", path(type, "_retry"), None, _given(state="dead", error=error), wait_sec=20)

    @_Method
    def put_schedule(self, name: str, /, **settings: Any) -> Request[str]:
        """Makes or replaces a schedule, and returns when it occurs next."""
        return Request("PUT", path(name, root="_schedules"), "next", settings)

    @_Method
    def run_schedule(self, name: str, *, idempotency_key: str | None = None) -> Request[str]:
        """Adds a job of a schedule now, and returns its id."""
        return Request("POST", path(name, "_run", root="_schedules"), "id", None, _key(idempotency_key))

    @_Method
    def schedules(self, *, limit: int = 100, after: str | None = None) -> Request[Schedules]:
        """A page of schedules; pass its `next` as `after`."""
        return Request("GET", path(root="_schedules", limit=limit, after=after))

    @_Method
    def make_token(
        self, name: str, rights: Sequence[Right], *, types: Sequence[str] | None = None, expires_sec: float | None = None
    ) -> Request[str]:
        """Makes an API token, and returns its text, which is shown only this time: if it is lost, revoke the token."""
        body = _given(name=name, rights=rights, types=types, expires_sec=expires_sec)
        return Request("POST", path(root="_tokens"), "token", body, is_repeatable=False)
