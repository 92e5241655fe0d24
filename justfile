# Everyday commands. `just check` runs what CI runs.

default:
    @just --list

# Run everything that CI checks
check:
    .ci/run

# Run the tests, each in its own process, with time limits
test *args:
    cargo nextest run --workspace {{args}}

# Run the simulations of the queue and of work that follows changes over many seeds: `just simulate 10000`; from seed 4711: `just simulate 100 4711`
simulate seeds="1000" first="1": && (simulate-changes seeds first) (simulate-jobs seeds first)
    DAVENPORT_SEEDS={{seeds}} DAVENPORT_SEED={{first}} cargo test -p davenport-jobs --lib -- --nocapture simulation::guarantees_hold

# Compare the queue with its model in very many random scripts: `just model 100000`
model scripts="10000":
    DAVENPORT_CASES={{scripts}} cargo test -p davenport-jobs --lib -- --exact testing::model::memory

# Run the simulation of nodes that follow a server's changes
simulate-changes seeds="1000" first="1":
    DAVENPORT_SEEDS={{seeds}} DAVENPORT_SEED={{first}} cargo test -p rules --test simulation -- --nocapture every_change

# Compare jobs over HTTP with a model, while frontends are killed and requests are repeated, delayed and lost
simulate-jobs seeds="1000" first="1":
    DAVENPORT_SEEDS={{seeds}} DAVENPORT_SEED={{first}} cargo test -p api --test service -- --nocapture model::no_job

# Kill one of three nodes that follow changes every 5 s, for the given seconds; with TEST_COUCHDB_URL on Apache CouchDB
kill-changes seconds="600":
    CHANGES_SECONDS={{seconds}} cargo test -p e2e --test nodes -- --nocapture changes::

# Kill one of two nodes that push git mirrors every 4 s, for the given seconds
kill-git seconds="600":
    GIT_SECONDS={{seconds}} cargo test -p davenport-git --test mirrors -- --nocapture gr_s05

# Run the simulation of whole fleets that replicate between two servers
simulate-fleet seeds="300" first="1":
    DAVENPORT_SEEDS={{seeds}} DAVENPORT_SEED={{first}} cargo test -p scheduler --lib -- --nocapture simulation::replications

# Check dependencies for known vulnerabilities; run weekly, because CI only runs on changes. Needs the network
audit:
    cargo deny check -A warnings advisories

# Print a release's bill of materials, CycloneDX in JSON: `just sbom > davenport.cdx.json`
sbom *target:
    @.ci/sbom {{target}}

# Fuzz every parser for the given seconds each: `just fuzz 3600`; from seed 4711: `just fuzz 60 4711`
fuzz seconds="60" seed="0":
    FUZZ_SECONDS={{seconds}} FUZZ_SEED={{seed}} cargo test -p document --test fuzz -- --nocapture
    FUZZ_SECONDS={{seconds}} FUZZ_SEED={{seed}} cargo test -p wire -p couch -p api --lib -- --nocapture any_
    FUZZ_SECONDS={{seconds}} cargo test -p davenport-store -p davenport-jobs --lib -- --nocapture fuzz::

# Build a Debian package and a tarball in target/package
package:
    packaging/build
