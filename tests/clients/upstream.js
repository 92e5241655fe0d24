// PouchDB as client of a frontend that stands in front of a cluster: node upstream.js URL
import assert from "node:assert/strict";
import PouchDB from "pouchdb-core";
import adapterHttp from "pouchdb-adapter-http";
import adapterMemory from "pouchdb-adapter-memory";
import replication from "pouchdb-replication";

PouchDB.plugin(adapterHttp).plugin(adapterMemory).plugin(replication);

const url = process.argv[2];
const theirs = new PouchDB(`${url}/pouch-through`);
const mine = new PouchDB("mine", { adapter: "memory" });

// A database of the cluster, synchronised live through the frontend, attachments and all.
await mine.bulkDocs(Array.from({ length: 50 }, (_, n) => ({ _id: `doc${n}`, n })));
await mine.put({
  _id: "with", _attachments: { "a.bin": { content_type: "application/octet-stream", data: Buffer.alloc(300_000, 7) } },
});
const live = mine.sync(theirs, { live: true, retry: false });
const heard = new Promise((resolve, reject) => {
  live.on("error", reject);
  live.on("change", ({ direction, change }) => {
    if (direction === "pull" && change.docs.some((doc) => doc._id === "theirs")) resolve();
  });
});
await theirs.put({ _id: "theirs" });
await heard;
live.cancel();
await mine.replicate.to(theirs);
const info = await theirs.info();
assert.equal(info.doc_count, 52);
const there = await theirs.getAttachment("with", "a.bin");
assert.equal(there.length ?? there.size, 300_000);

// A replication between two databases of the cluster, by their names.
const jobs = new PouchDB(`${url}/_replicator`);
const { rev } = await jobs.put({ _id: "named", source: "pouch-through", target: "pouch-copy", create_target: true });
let state;
for (let tries = 0; tries < 600 && state?._replication_state !== "completed"; tries += 1) {
  state = await jobs.get("named");
  await new Promise((resolve) => setTimeout(resolve, 50));
}
assert.equal(state._replication_state, "completed");
assert.notEqual(state._rev, rev);
const copy = new PouchDB(`${url}/pouch-copy`);
assert.equal((await copy.info()).doc_count, 52);
await jobs.remove(await jobs.get("named"));
await copy.destroy();
await theirs.destroy();
