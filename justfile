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
    DAVENPORT_SEEDS={{seeds}} DAVENPORT_SEED={{first}} cargo test -p replicator --lib -- --nocapture simulation::replications

# Known vulnerabilities; needs the network
audit:
    cargo deny check advisories
