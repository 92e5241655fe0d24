// nano as client of a replicator database: node nano.js URL
import assert from "node:assert/strict";
import Nano from "nano";

const url = process.argv[2];
const nano = Nano(url);
const body = (rest = {}) => ({ source: "http://src.example/a", target: "http://tgt.example/b", ...rest });

async function server() {
  assert.equal((await nano.info()).couchdb, "Welcome");
  assert.equal((await nano.uuids(3)).uuids.length, 3);
  assert.ok((await nano.db.list()).includes("_replicator"));
  const session = await nano.session();
  assert.equal(session.userCtx.name, "root");
}

async function cookies() {
  const bare = Nano(url.replace(/\/\/.*@/, "//"));
  await assert.rejects(bare.db.list(), { statusCode: 401 });
  await bare.auth("root", "s3cret");
  assert.ok((await bare.db.list()).length > 1);
  const db = bare.use("_replicator");
  const { rev } = await db.insert(body(), "by-cookie");
  await db.destroy("by-cookie", rev);
}

async function documents() {
  await nano.db.create("nano/_replicator");
  await assert.rejects(nano.db.create("nano/_replicator"), { statusCode: 412, error: "file_exists" });
  const db = nano.use("nano/_replicator");
  const { rev } = await db.insert(body({ note: 1 }), "one");
  assert.equal((await db.get("one"))._rev, rev);
  assert.equal((await db.head("one")).etag, `"${rev}"`);
  await assert.rejects(db.insert({}, "bad"), { statusCode: 403, reason: "Missing `source` field" });
  const rows = await db.bulk({ docs: [body({ _id: "two" }), { _id: "bad" }] });
  assert.deepEqual(rows.map((row) => row.ok ?? row.error), [true, "forbidden"]);
  assert.equal((await db.list({ include_docs: true })).rows.length, 2);
  assert.equal((await db.fetch({ keys: ["one", "none"] })).rows[1].error, "not_found");
  assert.equal((await db.find({ selector: { note: 1 } })).docs.length, 1);
  assert.equal((await db.changes({ since: 0 })).results.length, 2);
  await db.attachment.insert("one", "note.txt", "hello", "text/plain", { rev });
  assert.equal(String(await db.attachment.get("one", "note.txt")), "hello");
  const doc = await db.get("one");
  await db.destroy("one", doc._rev);
  await assert.rejects(db.get("one"), { statusCode: 404, reason: "deleted" });
  assert.equal((await nano.db.get("nano/_replicator")).doc_count, 1);
}

async function changes() {
  const db = nano.use("nano/_replicator");
  const seen = new Promise((resolve, reject) => {
    db.changesReader.start({ since: "now" }).on("change", resolve).on("error", reject);
    // The reader has to be there before the change, however slow the machine.
    setTimeout(() => db.insert(body(), "later").catch(reject), 300);
  });
  assert.equal((await seen).id, "later");
  db.changesReader.stop();
  await nano.db.destroy("nano/_replicator");
}

for (const step of [server, cookies, documents, changes]) {
  await step();
  console.log(`nano: ${step.name}`);
}
process.exit(0);
