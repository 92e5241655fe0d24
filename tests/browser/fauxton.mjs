// Fauxton as CouchDB has it: its built files at /_utils, and everything else from the service.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rename } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { promisify } from "node:util";
import { serveProxy } from "./proxy.mjs";
import { TARGET } from "./service.mjs";

const VERSION = "1.2.6";
const INTEGRITY = "5ZwPKqstwmQclSHifWBmbyzlBOLoBB3gssGaiEFLPcIzHO0Zxz+uPr/D/Fs6DGH7Hfohw7s6zqcjwU9CRcshfw==";
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".png": "image/png", ".svg": "image/svg+xml", ".woff": "font/woff" };

// The package as it was published. What it needs to be built from, hundreds of packages, is not installed.
async function built() {
  const home = join(TARGET, `fauxton-${VERSION}`);
  const files = join(home, "package", "dist", "release");
  if (existsSync(files)) return files;
  await mkdir(TARGET, { recursive: true });
  const draft = await mkdtemp(`${home}-`);
  const run = promisify(execFile);
  const { stdout } = await run("npm", ["pack", "--silent", `fauxton@${VERSION}`, "--pack-destination", draft]);
  const archive = join(draft, stdout.trim());
  assert.equal(createHash("sha512").update(await readFile(archive)).digest("base64"), INTEGRITY, "this is not the package that was tried");
  await run("tar", ["-xzf", archive, "-C", draft]);
  await rename(draft, home).catch((error) => { if (!existsSync(files)) throw error; });
  return files;
}

export async function serveFauxton(service) {
  const files = await built();
  const proxy = await serveProxy(service, (request, response) => {
    const path = new URL(request.url, "http://here").pathname;
    const own = path.startsWith("/_utils/");
    if (own) file(files, path.slice("/_utils/".length) || "index.html", response);
    return own;
  });
  return { ...proxy, url: `${proxy.url}_utils/` };
}

async function file(files, name, response) {
  const path = normalize(join(files, decodeURIComponent(name)));
  try {
    assert(path.startsWith(files));
    const bytes = await readFile(path);
    response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "application/octet-stream" });
    response.end(bytes);
  } catch {
    response.writeHead(404);
    response.end();
  }
}
