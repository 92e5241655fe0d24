# What a developer does every day. `just check` is what CI does.

default:
    @just --list

# Everything CI checks
check:
    .ci/run

# The tests, one process each, with time limits
test *args:
    cargo nextest run --workspace {{args}}

# Run the fleet simulation over many seeds: `just simulate 10000`, from another on: `just simulate 100 4711`
simulate seeds="1000" first="1":
    DAVENPORT_SEEDS={{seeds}} DAVENPORT_SEED={{first}} cargo test -p jobs --lib -- --nocapture simulation::promises

# The same for whole fleets that replicate between two servers
simulate-fleet seeds="300" first="1":
    DAVENPORT_SEEDS={{seeds}} DAVENPORT_SEED={{first}} cargo test -p scheduler --lib -- --nocapture simulation::replications

# Known vulnerabilities, to be run weekly: CI does not run while nothing changes. Needs the network
audit:
    cargo deny check -A warnings advisories

# The bill of materials of a release, CycloneDX in JSON: `just sbom > davenport.cdx.json`
sbom *target:
    @.ci/sbom {{target}}

# Fuzz every parser for so many seconds each, from another seed on: `just fuzz 3600`, `just fuzz 60 4711`
fuzz seconds="60" seed="0":
    FUZZ_SECONDS={{seconds}} FUZZ_SEED={{seed}} cargo test -p document --test fuzz -- --nocapture
    FUZZ_SECONDS={{seconds}} FUZZ_SEED={{seed}} cargo test -p couch -p peer -p api --lib -- --nocapture any_
    FUZZ_SECONDS={{seconds}} cargo test -p store -p jobs --lib -- --nocapture fuzz::
