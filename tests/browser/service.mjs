// The program under test, and two CouchDB-compatible servers to replicate between.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
export const TARGET = process.env.CARGO_TARGET_DIR ?? join(ROOT, "target");
const PROGRAM = process.env.DAVENPORT ?? join(TARGET, "debug", "davenport");
const PATIENCE_MS = 60_000;
export const PASSWORD = "correct horse";

// Runs the program until it has said a line of each form; what it says later is read and kept.
class Program {
  constructor(args, forms) {
    this.log = [];
    this.child = spawn(PROGRAM, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, NO_COLOR: "1" } });
    for (const stream of [this.child.stdout, this.child.stderr]) createInterface({ input: stream }).on("line", (line) => this.log.push(line));
    this.found = this.until(forms);
  }

  async until(forms) {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
      const found = forms.map((form) => this.log.map((line) => form.exec(line)).find(Boolean));
      if (found.every(Boolean)) return found.map((match) => match[1]);
      if (this.child.exitCode !== null || Date.now() > deadline) throw new Error(`${PROGRAM} did not start:\n${this.log.join("\n")}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async stop() {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = once(this.child, "exit");
    this.child.kill("SIGTERM");
    await ended;
  }
}

export class Service {
  // Both roles on a directory of their own, and the servers of a demo, the first of which has a database `orders`
  // that gets a document a second. With `upstream`, it stands in front of that server; with `follow`, it follows it.
  static async start({ upstream = false, follow = false } = {}) {
    const service = new Service();
    service.demo = new Program(["demo", "--documents", "300"], [/^source\s+(\S+)/, /^target\s+(\S+)/, /^log in\s+admin:(\S+)/]);
    [service.source, service.target, service.peerPassword] = await service.demo.found;
    service.directory = await mkdtemp(join(tmpdir(), "davenport-browser-"));
    const settings = ["replicator.stats_update_interval_sec=1", "replicator.min_backoff_penalty_sec=2"];
    if (upstream) settings.push(`upstream.url=${new URL(service.source).origin}`);
    const args = ["serve", "--listen", "127.0.0.1:0", "--store", `lmdb:${join(service.directory, "data")}`, "--admin", `root:${PASSWORD}`];
    if (follow) {
      const file = join(service.directory, "davenport.toml");
      const url = new URL(service.source).origin.replace("//", `//admin:${service.peerPassword}@`);
      await writeFile(file, `[sources.demo]\nurl = "${url}"\n`);
      args.push("--config", file);
    }
    service.program = new Program([...args, ...settings.flatMap((setting) => ["--set", setting])], [/^davenport listens on (\S+)/, /^(davenport is ready)/]);
    [service.url] = await service.program.found;
    return service;
  }

  // A request of an administrator.
  async request(path, { method = "GET", json, ok = true } = {}) {
    const headers = { authorization: `Basic ${btoa(`root:${PASSWORD}`)}`, "content-type": "application/json" };
    const response = await fetch(new URL(path, this.url), { method, headers, body: json && JSON.stringify(json) });
    const text = await response.text();
    if (ok && !response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return JSON.parse(text);
  }

  endpoint(url) {
    return { url, auth: { basic: { username: "admin", password: this.peerPassword } } };
  }

  // A replication between the demo's servers, of documents that have to be asked for by id: there is always the same to do.
  replication(members = {}) {
    return { source: this.endpoint(this.source), target: this.endpoint(this.target.replace(/orders\/?$/, "copies")), create_target: true, ...members };
  }

  async stop() {
    await this.program?.stop();
    await this.demo?.stop();
    if (this.directory) await rm(this.directory, { recursive: true, force: true });
  }
}
