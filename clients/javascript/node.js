// The client in Node. It writes requests to sockets itself: `node:http` takes three times as long for one, and `fetch` longer still.
import { validateHeaderValue } from "node:http";
import net from "node:net";
import { hostname } from "node:os";
import tls from "node:tls";
import { Client as AnyClient, Worker as AnyWorker } from "./index.js";

export * from "./index.js";

/** Open connections without a request, by origin. */
const idle = new Map();

/** A connection, for one request at a time. */
class Connection {
  // What has arrived and is not read yet, a character for each byte.
  #text = "";
  #open; #socket; #response; #answer;

  constructor({ origin, protocol, hostname: name, port }) {
    const [host, isTls] = [name.replace(/^\[|\]$/g, ""), protocol === "https:"];
    const place = { host, port: port || (isTls ? 443 : 80), servername: net.isIP(host) ? "" : host };
    if (!idle.has(origin)) idle.set(origin, []);
    this.#open = idle.get(origin);
    this.#socket = (isTls ? tls : net).connect(place).setNoDelay().setKeepAlive(true, 1_000).setEncoding("latin1");
    this.#socket.on("data", (piece) => this.#read(piece)).on("error", (error) => this.close(error));
    this.#socket.on("close", () => {
      // The end of a response that names no length.
      if (this.#answer && this.#response?.length === Infinity) this.#respond(this.#text);
      this.close(new Error("the connection was closed"));
    });
  }

  exchange(request) {
    return new Promise((resolve, reject) => {
      this.#answer = { resolve, reject };
      this.#socket.ref().write(request);
    });
  }

  close(error) {
    this.#answer?.reject(error);
    this.#answer = undefined;
    this.#socket.destroy();
    if (this.#open.includes(this)) this.#open.splice(this.#open.indexOf(this), 1);
  }

  #read(piece) {
    // Not asked for: a server may say 408 before it closes an idle connection.
    if (!this.#answer) return this.close();
    this.#text += piece;
    while (!this.#response) {
      const end = this.#text.indexOf("\r\n\r\n");
      if (end < 0) return;
      const [first, ...lines] = this.#text.slice(0, end).split("\r\n");
      if (!/^HTTP\/1\.\d \d{3}/.test(first)) return this.close(new Error("the answer is not HTTP"));
      this.#text = this.#text.slice(end + 4);
      const [status, headers] = [Number(first.slice(9, 12)), new Map()];
      for (const line of lines) headers.set(line.split(":", 1)[0].toLowerCase(), line.slice(line.indexOf(":") + 1).trim());
      const length = [204, 304].includes(status) ? 0 : Number(headers.get("content-length") ?? Infinity);
      // Interim responses come before the one that counts.
      if (status >= 200) this.#response = { status, headers, length, body: "" };
    }
    const { headers, length } = this.#response;
    if (/^chunked$/i.test(headers.get("transfer-encoding"))) this.#readChunks();
    else if (this.#text.length >= length) this.#respond(this.#text.slice(0, length), this.#text.length > length);
  }

  #readChunks() {
    for (;;) {
      const size = Number.parseInt(this.#text, 16);
      const from = this.#text.indexOf(size === 0 ? "\r\n\r\n" : "\r\n") + 2;
      if (from === 1 || this.#text.length < from + size + 2) return;
      this.#response.body += this.#text.slice(from, from + size);
      this.#text = this.#text.slice(from + size + 2);
      if (!(size > 0)) return this.#respond(this.#response.body, this.#text !== "" || size !== 0);
    }
  }

  #respond(bytes, isBroken) {
    const [{ status, headers }, { resolve }] = [this.#response, this.#answer];
    [this.#text, this.#response, this.#answer] = ["", undefined, undefined];
    if (isBroken || /^close$/i.test(headers.get("connection"))) this.close();
    else if (!this.#socket.destroyed) {
      // A connection without a request does not keep the process from ending.
      this.#socket.unref();
      this.#open.push(this);
    }
    resolve({ ok: status < 400, status, headers, text: () => Buffer.from(bytes, "latin1").toString() });
  }
}

/** What the client needs of `fetch`. Feeds, whose responses have no end, use `fetch` itself. */
async function fetch(url, { method, headers, body = "", signal, stream, isRepeatable }) {
  if (stream) return globalThis.fetch(url, { method, headers, signal });
  const [, origin, host, path] = /^(https?:..([^/]*))(.*)/.exec(url);
  let head = `${method} ${path} HTTP/1.1\r\nHost: ${host}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n`;
  for (const [name, value] of Object.entries(headers)) {
    validateHeaderValue(name, value);
    head += `${name}: ${value}\r\n`;
  }
  // The service may be closing an idle one.
  const connection = (isRepeatable ? idle.get(origin)?.pop() : undefined) ?? new Connection(new URL(url));
  const abort = () => connection.close(signal.reason);
  signal.addEventListener("abort", abort);
  try {
    return await connection.exchange(`${head}\r\n${body}`);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

export class Client extends AnyClient {
  constructor(urls, options) {
    super(urls, { fetch, ...options });
  }
}

export class Worker extends AnyWorker {
  constructor(client, type, handler, options) {
    super(client, type, handler, { name: `${hostname()}:${process.pid}`, ...options });
  }
}
