// PouchDB as client of a replicator database: node pouchdb.js URL
import assert from "node:assert/strict";
import PouchDB from "pouchdb-core";
import adapterHttp from "pouchdb-adapter-http";
import adapterMemory from "pouchdb-adapter-memory";
import find from "pouchdb-find";
import mapreduce from "pouchdb-mapreduce";
import replication from "pouchdb-replication";

PouchDB.plugin(adapterHttp).plugin(adapterMemory).plugin(find).plugin(mapreduce).plugin(replication);

const url = process.argv[2];
const body = (id, rest = {}) => ({
  _id: id, source: "http://src.example/a", target: "http://tgt.example/b", ...rest,
});

async function documents(db) {
  assert.equal((await db.info()).db_name, "pouch/_replicator");
  const { rev } = await db.put(body("one", { note: "first" }));
  const one = await db.get("one");
  assert.equal(one._rev, rev);
  assert.equal(one.owner, "root");
  await assert.rejects(db.put(body("one")), { status: 409, name: "conflict" });
  await assert.rejects(db.put({ _id: "bad" }), { status: 403, message: "Missing `source` field" });
  await db.put({ ...one, note: "second" });
  const made = await db.post(body(undefined));
  assert.ok(made.id);
  await db.remove(await db.get(made.id));
  await assert.rejects(db.get(made.id), { status: 404, reason: "deleted" });
  const revs = await db.get("one", { revs: true, revs_info: true });
  assert.equal(revs._revisions.start, 2);
  assert.deepEqual(revs._revs_info.map((info) => info.status), ["available", "missing"]);
}

async function listings(db) {
  const written = await db.bulkDocs([body("two"), body("three"), { _id: "bad" }]);
  assert.deepEqual(written.map((row) => row.ok ?? row.name), [true, true, "forbidden"]);
  const all = await db.allDocs({ include_docs: true });
  assert.deepEqual(all.rows.map((row) => row.id), ["one", "three", "two"]);
  assert.equal(all.rows[0].doc.note, "second");
  const some = await db.allDocs({ keys: ["two", "none"] });
  assert.equal(some.rows[1].error, "not_found");
  const range = await db.allDocs({ startkey: "t", endkey: "t\ufff0", descending: false });
  assert.equal(range.rows.length, 2);
  const got = await db.bulkGet({ docs: [{ id: "one" }, { id: "none" }] });
  assert.equal(got.results[0].docs[0].ok._id, "one");
  assert.equal(got.results[1].docs[0].error.error, "not_found");
  const found = await db.find({ selector: { note: "second" }, fields: ["_id"] });
  assert.deepEqual(found.docs, [{ _id: "one" }]);
  const changes = await db.changes({ since: 0, include_docs: true });
  assert.equal(changes.results.length, 4);
}

async function live(db) {
  const seen = new Promise((resolve, reject) => {
    const feed = db.changes({ since: "now", live: true, include_docs: true });
    feed.on("error", reject);
    feed.on("change", (change) => {
      feed.cancel();
      resolve(change);
    });
    // The feed has to be there before the change, however slow the machine.
    setTimeout(() => db.put(body("live")).catch(reject), 200);
  });
  const change = await seen;
  assert.equal(change.id, "live");
  assert.equal(change.doc.owner, "root");
}

async function conflicts(db) {
  const leaf = (rev, note) => body("torn", { _rev: rev, note, owner: "root" });
  await db.bulkDocs([leaf("1-a", "a"), leaf("1-b", "b")], { new_edits: false });
  const torn = await db.get("torn", { conflicts: true });
  assert.deepEqual([torn.note, torn._conflicts], ["b", ["1-a"]]);
  const leaves = await db.get("torn", { open_revs: "all" });
  assert.equal(leaves.length, 2);
  await db.remove("torn", "1-a");
  assert.equal((await db.get("torn", { conflicts: true }))._conflicts, undefined);
}

async function sync(db) {
  const local = new PouchDB("local", { adapter: "memory" });
  await local.put(body("from-here", { owner: "root" }));
  await local.put({ ...body("attached", { owner: "root" }), _attachments: {
    "note.txt": { content_type: "text/plain", data: Buffer.from("hello").toString("base64") },
  } });
  const both = await local.sync(db);
  assert.equal(both.push.doc_write_failures + both.pull.doc_write_failures, 0);
  assert.equal(both.push.docs_written, 2);
  const ids = async (of) => (await of.allDocs()).rows.map((row) => [row.id, row.value.rev]);
  assert.deepEqual(await ids(local), await ids(db));
  const sent = await db.getAttachment("attached", "note.txt");
  assert.equal(sent.toString(), "hello");
  const again = await local.sync(db);
  assert.equal(again.push.docs_written + again.pull.docs_written, 0);
  const doc = await db.get("from-here");
  await db.remove(doc);
  await local.replicate.from(db);
  await assert.rejects(local.get("from-here"), { status: 404 });
}

const db = new PouchDB(`${url}/pouch%2F_replicator`);
for (const step of [documents, listings, live, conflicts, sync]) {
  await step(db);
  console.log(`pouchdb: ${step.name}`);
}
await db.destroy();
process.exit(0);
