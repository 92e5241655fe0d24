// What Node's client reads and writes itself, against servers that answer as they are told.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import tls from "node:tls";
import { promisify } from "node:util";
import { Client, UnreachableError } from "davenport-jobs";

const run = promisify(execFile);
const body = JSON.stringify({ id: "ü€😀", state: "pending" });
const size = Buffer.byteLength(body);
const whole = `HTTP/1.1 200 OK\r\nContent-Length: ${size}\r\n\r\n${body}`;

// Not `once`, which rejects if the connection breaks.
const closed = (socket) => socket.destroyed || new Promise((resolve) => socket.once("close", resolve));

/** A server whose connections are given to `answer`, each request as it has come. */
async function serving(t, answer) {
  const server = net.createServer((socket) => {
    server.connections.push(socket);
    socket.on("error", () => {}).on("data", (request) => answer(socket, String(request)));
  });
  server.connections = [];
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.close();
    for (const socket of server.connections) socket.destroy();
  });
  return [new Client(`http://127.0.0.1:${server.address().port}/base`), server];
}

const chunked = (...pieces) => pieces.map((piece) => `${piece.length.toString(16)};x=y\r\n${piece.toString("latin1")}\r\n`).join("");
const bytes = Buffer.from(body);
const responses = {
  "of a known length": [whole],
  "after interim ones": [`HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n${whole}`],
  "in chunks": [
    // A cut within a character.
    Buffer.from(`HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${chunked(bytes.subarray(0, 9), bytes.subarray(9))}0\r\na: b\r\n\r\n`, "latin1"),
  ],
  "in Chunks": [Buffer.from(`HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n${chunked(bytes)}0\r\n\r\n`, "latin1")],
  "until the end of the connection": [`HTTP/1.1 200 OK\r\n\r\n${body}`, true],
};

for (const [name, [response, ends]] of Object.entries(responses)) {
  test(`responses ${name} are read, however they arrive`, async (t) => {
    const [client] = await serving(t, async (socket, request) => {
      assert.match(request, /^GET \/base\/_jobs\/t\/a HTTP\/1\.1\r\nHost: 127\.0\.0\.1:\d+\r\n/);
      for (const byte of Buffer.from(response)) {
        socket.write(Buffer.of(byte));
        await new Promise(setImmediate);
      }
      if (ends) socket.end();
    });
    for (const _ of [1, 2]) assert.equal((await client.get("t", "a")).id, "ü€😀");
  });
}

test("a connection serves one request after another", async (t) => {
  const [client, server] = await serving(t, (socket) => socket.write(whole));
  for (const _ of [1, 2, 3]) await client.get("t", "a");
  assert.equal(server.connections.length, 1);
  await Promise.all([1, 2, 3].map(() => client.get("t", "a")));
  assert.ok(server.connections.length > 1);
});

test("a connection that the server ends is not used again", async (t) => {
  const endings = [
    (socket) => socket.write(whole.replace("Content-Length", "connection: close\r\ncontent-length")),
    (socket) => socket.write(whole.replace("Content-Length", "Connection: Close\r\nContent-Length")),
    (socket) => socket.end(whole),
    // It has waited for too long.
    (socket) => {
      socket.write(whole);
      setImmediate(() => socket.end("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"));
    },
    (socket) => socket.write(`${whole}and more`),
  ];
  for (const end of endings) {
    const [client, server] = await serving(t, end);
    for (const nth of [1, 2]) {
      assert.equal((await client.get("t", "a")).state, "pending");
      await closed(server.connections.at(-1));
      assert.equal(server.connections.length, nth);
    }
  }
});

test("a response that ends early is an error, and so is one that is no HTTP", async (t) => {
  const refusals = [
    [whole.slice(0, -1), /cannot reach .* the connection was closed/],
    ["nonsense\r\n\r\n", /cannot reach .* the answer is not HTTP/],
    [whole.replace("200", "OK"), /cannot reach .* the answer is not HTTP/],
    ["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n\r\n", /unexpected_response/],
  ];
  for (const [response, refusal] of refusals) {
    const [client] = await serving(t, (socket) => socket.end(response));
    await assert.rejects(client.get("t", "a"), refusal);
  }
});

test("a request that is aborted ends its connection", async (t) => {
  const abort = new AbortController();
  const [client, server] = await serving(t, () => abort.abort(new Error("enough")));
  await assert.rejects(client.get("t", "a", { signal: abort.signal }), /enough/);
  await closed(server.connections[0]);
});

test("headers cannot be smuggled into a request", async (t) => {
  const [client, server] = await serving(t, (socket) => socket.write(whole));
  await assert.rejects(client.enqueue("t", 1, { idempotency_key: "a\r\nX-Admin: yes" }), /Invalid character in header/);
  assert.deepEqual(server.connections, []);
});

test("servers with TLS have to be who they say they are, and an idle connection lets the process end", async (t) => {
  const directory = await mkdtemp(join(tmpdir(), "davenport-"));
  t.after(() => rm(directory, { recursive: true }));
  const [key, cert] = ["key", "cert"].map((name) => join(directory, name));
  const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
  await run("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert, ...subject]);
  const server = tls.createServer({ key: await readFile(key), cert: await readFile(cert) }, (socket) => socket.on("data", () => socket.write(whole)));
  server.on("tlsClientError", () => {}).listen(0);
  await once(server, "listening");
  t.after(() => server.close());
  const source = `
    import { Client } from "davenport-jobs";
    for (const host of ["localhost", "127.0.0.1"]) console.log((await new Client(\`https://\${host}:${server.address().port}\`).get("t", "a")).id);`;
  const ask = (env) => run(process.execPath, ["--input-type=module", "-e", source], { cwd: import.meta.dirname ?? new URL(".", import.meta.url), env: { ...process.env, ...env } });
  assert.equal((await ask({ NODE_EXTRA_CA_CERTS: cert })).stdout, "ü€😀\nü€😀\n");
  await assert.rejects(ask({}), /self-signed certificate/);
});

test("a token is made once, and other requests are repeated", async (t) => {
  const asked = [];
  const [client] = await serving(t, (socket, request) => {
    asked.push([request.split(" ")[1], /idempotency-key: (.*)\r/i.exec(request)?.[1]]);
    socket.destroy();
  });
  await assert.rejects(client.makeToken({ name: "t", rights: ["read"] }), UnreachableError);
  assert.deepEqual(asked.splice(0), [["/base/_tokens", undefined]]);
  await assert.rejects(client.runSchedule("s", { idempotency_key: "monday" }), UnreachableError);
  assert.deepEqual(asked, Array(5).fill(["/base/_schedules/s/_run", "monday"]));
});

test("a token is made over a new connection, as the service may be closing an idle one", async (t) => {
  const [client, { connections }] = await serving(t, (socket) => socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"token":"d"}`));
  await client.get("t", "a");
  await client.get("t", "a");
  assert.equal(connections.length, 1);
  assert.equal(await client.makeToken({ name: "t", rights: ["read"] }), "d");
  assert.equal(connections.length, 2);
});
