"""What requests and responses have."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, List, Literal, NotRequired, Required, TypedDict

State = Literal["pending", "running", "finished", "dead"]
Class = Literal["urgent", "normal", "bulk"]
OnExists = Literal["replace", "keep", "earliest"]

Options = TypedDict("Options", {
    "headers": Mapping[str, str] | None, "timeout_sec": float, "tls": ssl.SSLContext | None,
}, total=False)  # fmt: skip
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
Beaten = TypedDict("Beaten", {
    "id": str, "status": Literal["held", "halt", "again"], "deadline": str | None, "error": NotRequired[str],
    "reason": NotRequired[str],
})  # fmt: skip
Beats = TypedDict("Beats", {"jobs": List[Beaten], "timeout_sec": NotRequired[float], "drain": bool})
Ended = TypedDict("Ended", {
    "id": str, "lock": str, "outcome": Literal["done", "failed", "again"], "result": NotRequired[Any], "error": NotRequired[Any],
    "delay_sec": NotRequired[float | None], "retry": NotRequired[bool],
})  # fmt: skip
Finished = TypedDict("Finished", {"id": str, "status": Literal["ok", "repeated", "halt"]})
Finish = TypedDict("Finish", {"results": List[Finished], "jobs": List[Claimed], "timeout_sec": float})
Attempt = TypedDict("Attempt", {
    "worker": str, "start": str, "end": str | None, "reason": str | None,
    "outcome": Literal["done", "failed", "again", "silent", "returned"] | None,
})  # fmt: skip
# A job as `get` and `wait` return it. Listings have data, progress, result and error only if asked for them. A job that
# cannot be read has `unreadable` instead, which says why.
JobInfo = TypedDict("JobInfo", {
    "id": str, "type": str, "state": State, "due": str, "created": str, "finished": str | None, "expires": str | None,
    "attempt": int, "failures": int, "worker": str | None, "waits_for": str | None, "reason": str | None,
    "data": NotRequired[Any], "progress": NotRequired[Any], "result": NotRequired[Any], "error": NotRequired[Any],
    "attempts": NotRequired[List[Attempt]], "unreadable": NotRequired[str],
})  # fmt: skip
Page = TypedDict("Page", {"jobs": List[JobInfo], "next": str | None})
Retried = TypedDict("Retried", {"ok": bool, "count": int, "running": NotRequired[bool]})
# An event of `follow`. A removed job has only `id` and `state`.
Change = TypedDict("Change", {
    "id": str, "state": Literal["pending", "running", "finished", "dead", "removed"], "attempt": NotRequired[int],
    "progress": NotRequired[Any], "result": NotRequired[Any], "error": NotRequired[Any],
})  # fmt: skip
TypeInfo = TypedDict("TypeInfo", {
    "type": str, "internal": bool, "counts": dict[State, int], "totals": dict[str, int], "due": int,
    "waiting_for_limits": int, "oldest_due": str | None, "settings": NotRequired[dict[str, Any]], "paused": NotRequired[bool],
})  # fmt: skip
ScheduleInfo = TypedDict("ScheduleInfo", {
    "name": str, "type": str, "job": NewJob, "cron": NotRequired[str], "every_sec": NotRequired[float],
    "zone": NotRequired[str], "overlap": Literal["skip", "queue"], "catch_up": Literal["one", "all", "none"], "next": str,
    "skipped": int, "last": dict[str, Any] | None, "unreadable": NotRequired[str],
})  # fmt: skip
Schedules = TypedDict("Schedules", {"schedules": List[ScheduleInfo], "next": str | None})
Right = Literal["enqueue", "work", "read"]
TokenInfo = TypedDict("TokenInfo", {
    "name": str, "types": List[str] | None, "rights": List[Right], "created": str, "created_by": str,
    "expires": str | None, "expired": bool,
})  # fmt: skip
