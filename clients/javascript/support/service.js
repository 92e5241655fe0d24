// The real service: the program that DAVENPORT names.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const ended = (child) => new Promise((resolve) => (child.exitCode ?? child.signalCode) === null ? child.once("exit", resolve) : resolve(child.exitCode));

/** Asks again until the answer is true. */
export async function until(met) {
  for (let tries = 0; tries < 3_000; tries += 1) {
    const answer = await met();
    if (answer) return answer;
    await sleep(20);
  }
  throw new Error("it did not come true in time");
}

/** A service with a store of its own. `kill` and `start` again keep its port and data. */
export class Service {
  static async begin() {
    const service = new Service();
    service.directory = await mkdtemp(join(tmpdir(), "davenport-"));
    const free = createServer().listen(0, "127.0.0.1");
    await once(free, "listening");
    service.base = `http://127.0.0.1:${free.address().port}`;
    service.url = service.base.replace("//", "//root:s3cret@");
    await new Promise((resolve) => free.close(resolve));
    await service.start();
    return service;
  }

  async start() {
    const log = await open(join(this.directory, "log"), "a");
    const options = ["--store", `lmdb:${this.directory}/data`, "--admin", "root:s3cret", "--listen", this.base.slice(7)];
    this.process = spawn(process.env.DAVENPORT, ["serve", ...options, "--set", "log.level=warn"], { stdio: ["ignore", log.fd, log.fd] });
    await log.close();
    await until(async () => {
      if (this.process.exitCode !== null) throw new Error(await readFile(join(this.directory, "log"), "utf8"));
      return fetch(`${this.base}/_up`).then((up) => up.ok, () => false);
    });
  }

  async kill() {
    this.process.kill("SIGKILL");
    await ended(this.process);
  }

  async end() {
    await this.kill();
    await rm(this.directory, { recursive: true });
  }
}

/** A proxy in front of a service. While it hangs, connections stay open, but nothing is passed on. */
export class Proxy {
  hangs = false;
  #sockets = new Set();

  static async begin({ url, base }) {
    const proxy = new Proxy();
    const pass = (from, to) => from.on("data", (piece) => proxy.hangs || to.write(piece)).on("close", () => to.destroy());
    proxy.server = createServer((socket) => {
      const ends = [socket, connect(new URL(base).port, "127.0.0.1")];
      for (const end of ends) proxy.#sockets.add(end.on("error", () => {}));
      pass(...ends);
      pass(...ends.reverse());
    }).listen(0, "127.0.0.1");
    await once(proxy.server, "listening");
    proxy.url = url.replace(/\d+$/, proxy.server.address().port);
    return proxy;
  }

  end() {
    this.server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}

/** Starts a program that uses the package; `end(signal)` resolves with its exit code. */
export function program(source, ...args) {
  const child = spawn(process.execPath, ["--input-type=module", "-e", source, ...args], { cwd: new URL(".", import.meta.url), stdio: "inherit" });
  return { end: (signal) => (child.kill(signal), ended(child)) };
}
