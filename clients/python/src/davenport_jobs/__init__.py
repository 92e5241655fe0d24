"""Client and worker for Davenport's job queue."""

from ._client import AsyncClient as AsyncClient, Client as Client, ServiceError as ServiceError
from ._requests import Request as Request
from ._types import Added as Added, Change as Change, JobInfo as JobInfo, NewJob as NewJob, TypeInfo as TypeInfo
from ._worker import Again as Again, Failed as Failed, Halted as Halted, Job as Job, Worker as Worker
