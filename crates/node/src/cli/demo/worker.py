"""The worker of `davenport demo`: writes a receipt for each order."""

import os
import sys
import threading

from davenport_jobs import Client, Job, Worker


def receipt(job: Job) -> str:
    order = job.data
    return f"{order['customer']} pays {order['total_cents'] / 100:.2f} for {order['_id']}"


def end_with_the_demo() -> None:
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_the_demo, daemon=True).start()
Worker(Client(os.environ["DAVENPORT_URL"]), "receipts", receipt, concurrency=2, name="python").run()
