from __future__ import annotations

import asyncio
import os
import signal
import unittest
import urllib.request
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from unittest import mock

from davenport_jobs import AsyncClient, Client, Request, ServiceError
from service import Service, ServiceCase


class TestClient(ServiceCase):
    def test_jobs_are_added_read_and_removed(self) -> None:
        client, type = self.client, self.type
        self.assertEqual(client.enqueue(type, {"n": 1.5}, id="a b/ü?", class_="urgent", tenant="acme", key="k"), "a b/ü?")
        unnamed = client.enqueue(type, None, delay_sec=3600)
        later = datetime(2099, 1, 31, 8, tzinfo=timezone(timedelta(hours=1)))
        client.enqueue(type, [], id="later", due=later)
        self.assertEqual(client.enqueue(type, 2, id="later", on_exists="keep"), "later")
        job = client.get(type, "later")
        self.assertEqual((job["state"], job["due"], job["data"]), ("pending", "2099-01-31T07:00:00.000Z", []))
        self.assertEqual(client.get(type, "a b/ü?")["data"], {"n": 1.5})
        pages = [client.list(type, "pending", limit=2, data=True)]
        pages.append(client.list(type, "pending", limit=2, after=pages[0]["next"]))
        self.assertEqual({job["id"] for page in pages for job in page["jobs"]}, {"a b/ü?", unnamed, "later"})
        self.assertIn("data", pages[0]["jobs"][0])
        self.assertIsNone(pages[1]["next"])
        client.remove(type, "later")
        with self.assertRaises(ServiceError) as refused:
            client.get(type, "later")
        self.assertEqual((refused.exception.status, refused.exception.error), (404, "not_found"))
        self.assertEqual(client.type_info(type)["counts"]["pending"], 2)
        for lost in ("", ".", ".."):
            with self.assertRaisesRegex(ValueError, "lost in URLs"):
                client.remove(type, lost)
        self.assertIn(type, [one["type"] for one in client.types()])
        with self.assertRaises(ValueError):
            client.enqueue(type, None, due=datetime(2099, 1, 1))

    def test_many_jobs_have_an_answer_each(self) -> None:
        rows = self.client.enqueue_many(self.type, [{"data": 1, "id": "one"}, {"data": 2, "id": "_bad"}, {"data": 3}])
        self.assertEqual([row.get("ok", False) for row in rows], [True, False, True])
        self.assertEqual((rows[1]["id"], rows[1]["error"]), ("_bad", "bad_request"))

    def test_a_repeated_request_adds_nothing_twice(self) -> None:
        ids = [self.client.enqueue(self.type, 1, idempotency_key="order-1") for _ in range(2)]
        self.assertEqual(ids[0], ids[1])
        self.client.enqueue(self.type, 1)
        self.assertEqual(self.client.type_info(self.type)["counts"]["pending"], 2)

    def test_a_repeated_run_of_a_schedule_adds_one_job(self) -> None:
        self.client.put_schedule(self.type, type=self.type, every_sec=3600, job={"data": 1})
        ids = [self.client.run_schedule(self.type, idempotency_key=key) for key in ("monday", "monday", "tuesday")]
        self.assertEqual((ids[0], len(set(ids))), (ids[1], 2))
        self.assertEqual(self.client.type_info(self.type)["counts"]["pending"], 2)
        self.client.remove_schedule(self.type)

    def test_a_token_is_made_once(self) -> None:
        asked: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Reads requests, and loses the answers."""
            asked.append((await reader.readuntil(b"\r\n")).split(b" ")[1])
            writer.close()

        async def ask() -> None:
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            client = AsyncClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            for request in (client.make_token("t", ["read"]), client.run_schedule("s")):
                with self.assertRaises(ConnectionError):
                    await request
            server.close()

        asyncio.run(ask())
        self.assertEqual(asked, [b"/_tokens"] + [b"/_schedules/s/_run"] * 5)

    def test_a_feed_that_falls_silent_ends(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        event = b'data:{"id": "a", "state": "pending"}\n\n'

        async def ask(answer: bytes) -> list[str]:
            async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(answer)
                await reader.read()
                writer.close()

            server = await asyncio.start_server(hang, "127.0.0.1", 0)
            client = AsyncClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            seen: list[str] = []
            with self.assertRaises(ConnectionError):
                async for change in client.follow("t", ["a"]):
                    # A slow reader does not make the service silent.
                    await asyncio.sleep(0.5)
                    seen.append(change["state"])
            server.close()
            return seen

        with mock.patch("davenport_jobs._client.SILENT_SEC", 0.3, create=True):
            for answer, seen in ((b"", []), (head + b"%x\r\n%b\r\n" % (len(event), event), ["pending"])):
                self.assertEqual(asyncio.run(asyncio.wait_for(ask(answer), 10)), seen)

    def test_a_late_failure_does_not_change_the_server(self) -> None:
        client = AsyncClient(["http://a", "http://b", "http://c"])
        asked: list[int] = []

        async def ask() -> None:
            failed = asyncio.Event()

            async def open(url: Any) -> Any:
                asked.append(client._at)
                if len(asked) == 1:
                    await failed.wait()
                if url.hostname != "c":
                    raise OSError("planted")
                reader = asyncio.StreamReader()
                reader.feed_data(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"types": []}')
                return reader, mock.Mock(drain=mock.AsyncMock())

            with mock.patch.object(client, "_open", open):
                late = asyncio.create_task(client.types())
                while not asked:
                    await asyncio.sleep(0)
                await client.types()
                await client.close()
                failed.set()
                await late

        asyncio.run(ask())
        self.assertEqual(asked, [0, 0, 1, 2, 2])

    def test_integers_of_any_length_are_read(self) -> None:
        long = "1" * 5_000
        text = '{"data": [%s, 7], "id": "long"}' % long
        with urllib.request.urlopen(
            urllib.request.Request(
                f"http://127.0.0.1:{self.service.port}/_jobs/{self.type}", text.encode(),
                {"Content-Type": "application/json", "Authorization": "Basic " + b64encode(b"root:s3cret").decode()},
            )
        ) as added:  # fmt: skip
            self.assertEqual(added.status, 201)
        data = self.client.claim(self.type, "w")["jobs"][0]["data"]
        self.assertEqual((data, type(data[1])), ([Decimal(long), 7], int))

    def test_a_full_queue_says_when_to_come_again(self) -> None:
        self.client.put_type(self.type, max_pending=1)
        self.client.enqueue(self.type, 1)
        with self.assertRaises(ServiceError) as refused:
            self.client.enqueue(self.type, 2)
        self.assertEqual(refused.exception.status, 429)
        self.assertGreater(refused.exception.retry_after or 0, 0)

    def test_a_worker_can_be_written_by_hand(self) -> None:
        client, type = self.client, self.type
        for n in range(3):
            client.enqueue(type, n, id=str(n))
        claim = client.claim(type, "by-hand", count=1, wait_sec=30)
        (job,) = claim["jobs"]
        self.assertEqual((claim["timeout_sec"], job["attempt"], job["failures"]), (1, 1, 0))
        held = {"id": job["id"], "lock": job["lock"]}
        self.assertEqual(client.beat(type, [{**held, "progress": 50}])["jobs"][0]["status"], "held")  # type: ignore
        self.assertEqual(client.get(type, job["id"])["progress"], 50)
        done = {**held, "outcome": "done", "result": {"n": 1}}
        reply = client.finish(type, [done], claim=5, worker="by-hand")  # type: ignore
        self.assertEqual((reply["results"][0]["status"], len(reply["jobs"])), ("ok", 2))
        self.assertEqual(client.finish(type, [done])["results"][0]["status"], "repeated")  # type: ignore
        self.assertEqual(client.beat(type, [held])["jobs"][0]["status"], "halt")  # type: ignore
        finished = client.wait(type, job["id"])
        self.assertEqual((finished["state"], finished["result"]), ("finished", {"n": 1}))
        self.assertEqual([run["outcome"] for run in finished["attempts"]], ["done"])

    def test_pause_resume_and_retries(self) -> None:
        client, type = self.client, self.type
        client.put_type(type, retry={"limit": 0})
        client.enqueue_many(type, [{"id": id, "data": 0} for id in ("a", "b", "c")])
        client.pause(type)
        self.assertEqual(client.claim(type, "w", count=3)["jobs"], [])
        self.assertTrue(client.type_info(type)["paused"])
        client.resume(type)
        # Frontends notice it within a second.
        jobs = client.claim(type, "w", count=3, wait_sec=30)["jobs"]
        while len(jobs) < 3:
            jobs += client.claim(type, "w", count=3, wait_sec=30)["jobs"]
        errors = {"a": "one", "b": "one", "c": "two"}
        client.finish(
            type, [{"id": j["id"], "lock": j["lock"], "outcome": "failed", "error": errors[j["id"]]} for j in jobs]
        )
        self.assertEqual(client.wait(type, "a")["state"], "dead")
        self.assertEqual(client.retry_dead(type, "one"), {"ok": True, "count": 2})
        client.retry(type, "c")
        self.assertEqual(client.type_info(type)["counts"], {"pending": 3, "running": 0, "finished": 0, "dead": 0})

    def test_schedules_are_listed_page_by_page(self) -> None:
        client, names = self.client, [f"{self.type}-{n}" for n in range(3)]
        for name in names:
            client.put_schedule(name, type=self.type, every_sec=3600, job={"data": name})
        first = client.schedules(limit=2)
        second = client.schedules(limit=2, after=first["next"])
        self.assertEqual([row["name"] for row in first["schedules"] + second["schedules"]], names)
        self.assertIsNone(second["next"])
        self.assertEqual(client.schedule(names[0])["job"]["data"], names[0])
        for name in names:
            client.remove_schedule(name)

    def test_a_token_has_the_rights_that_it_names_until_it_is_revoked(self) -> None:
        client, type = self.client, self.type
        token = client.make_token(type, ["enqueue"], types=[type])
        adder = Client(f"http://127.0.0.1:{self.service.port}", headers={"Authorization": f"Bearer {token}"})
        self.addCleanup(adder.close)
        adder.enqueue(type, 1, id="a")
        for status, call in ((403, lambda: adder.get(type, "a")), (401, lambda: adder.enqueue(type, 1))):
            with self.assertRaises(ServiceError) as refused:
                call()
            self.assertEqual(refused.exception.status, status)
            if status == 403:
                self.assertEqual([row["rights"] for row in client.tokens() if row["name"] == type], [["enqueue"]])
                client.revoke_token(type)

    def test_changes_are_followed(self) -> None:
        client, type = self.client, self.type
        seen = client.follow(type, [client.enqueue(type, 0, id=id) for id in ("x", "y")])
        self.assertEqual(next(seen)["state"], "pending")
        self.assertEqual(next(seen)["state"], "pending")
        jobs = client.claim(type, "w", count=2, wait_sec=30)["jobs"]
        client.finish(type, [{"id": j["id"], "lock": j["lock"], "outcome": "done", "result": "ok"} for j in jobs])
        last = [change for change in seen][-1]
        self.assertEqual((last["state"], last["result"]), ("finished", "ok"))
        with self.assertRaises(ServiceError) as refused:
            next(client.follow(type, ["none"]))
        self.assertEqual((refused.exception.error, refused.exception.status), ("not_found", 404))
        self.assertIn("no such job", refused.exception.reason)

    def test_threads_and_forks_share_a_client(self) -> None:
        with ThreadPoolExecutor(8) as threads:
            ids = set(threads.map(lambda n: self.client.enqueue(self.type, n), range(50)))
        self.assertEqual(len(ids), 50)
        if child := os.fork():
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        else:
            self.client.enqueue(self.type, 1, id="of-a-fork")
            os._exit(0)
        self.assertEqual(self.client.get(self.type, "of-a-fork")["data"], 1)

    def test_any_request_can_be_made(self) -> None:
        session = self.client.send(Request[Any]("GET", "/_session", "userCtx"))
        self.assertEqual(session["name"], "root")

    def test_addresses_are_checked(self) -> None:
        for url in ("localhost:5985", "ftp://localhost", ""):
            with self.assertRaises(ValueError):
                Client(url)
        with self.assertRaises(ConnectionError):
            Client("http://127.0.0.1:1").types()
        with self.assertRaises(ServiceError) as refused:
            Client(f"http://127.0.0.1:{self.service.port}").types()
        self.assertEqual(refused.exception.status, 401)
        with self.assertRaises(TypeError):
            self.client.enqueue(self.type, object())
        for key in ("a\r\nHost: b", "ü"):
            with self.assertRaises(ValueError):
                self.client.enqueue(self.type, 1, idempotency_key=key)

    def test_the_next_address_is_used_when_one_fails(self) -> None:
        client = Client(["http://127.0.0.1:1", self.service.url])
        self.assertEqual(client.enqueue(self.type, 1, id="a"), "a")


class TestKilledService(unittest.TestCase):
    def test_followers_learn_that_the_service_is_gone(self) -> None:
        for number in (signal.SIGKILL, signal.SIGTERM):
            service = Service()
            self.addCleanup(service.close)
            client = Client(service.url)
            client.put_type("t")
            seen = client.follow("t", [client.enqueue("t", 1)])
            self.assertEqual(next(seen)["state"], "pending")
            service.signal(number)
            with self.assertRaises(ConnectionError):
                next(seen)

    def test_a_request_outlives_the_service(self) -> None:
        service = Service()
        self.addCleanup(service.close)
        client = Client(service.url)
        client.put_type("t")
        client.enqueue("t", 1, id="a")
        service.kill()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.get, "t", "a")
            service.start()
            try:
                self.assertEqual(waiting.result()["data"], 1)
            except ConnectionError:
                # On a slow machine it starts later than the last try.
                self.assertEqual(client.get("t", "a")["data"], 1)


class TestAsyncClient(ServiceCase):
    def test_jobs_are_worked_on(self) -> None:
        asyncio.run(self.work())

    async def work(self) -> None:
        client, type = AsyncClient(self.service.url), self.type
        seen = client.follow(type, [await client.enqueue(type, 0, id="a")])
        self.assertEqual((await anext(seen))["state"], "pending")
        (job,) = (await client.claim(type, "w", wait_sec=30))["jobs"]
        end = client.finish(type, [{"id": "a", "lock": job["lock"], "outcome": "done", "result": [1]}])
        ends = await asyncio.gather(client.wait(type, "a"), client.wait(type, "a"), end)
        self.assertEqual((ends[0]["result"], ends[1]["state"]), ([1], "finished"))
        self.assertEqual([change["state"] async for change in seen][-1], "finished")
        await client.close()

    def test_a_cancelled_claim_takes_no_job(self) -> None:
        asyncio.run(self.cancel())

    async def cancel(self) -> None:
        client, type = AsyncClient(self.service.url), self.type
        claims = [asyncio.create_task(client.claim(type, "gone", wait_sec=60)) for _ in range(5)]
        (_, waiting) = await asyncio.wait(claims, timeout=0.2)
        for claim in waiting:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
        await client.enqueue(type, 1, id="a")
        (job,) = (await client.claim(type, "w", wait_sec=60))["jobs"]
        self.assertEqual((job["id"], job["failures"]), ("a", 0))
        await client.close()


if __name__ == "__main__":
    unittest.main()
