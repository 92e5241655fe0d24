# What a developer does every day. `just check` is what CI does.

default:
    @just --list

# Everything CI checks
check:
    .ci/run

# The tests, one process each, with time limits
test *args:
    cargo nextest run --workspace {{args}}

# Run the fleet simulation over many seeds: `just simulate 10000`
simulate seeds="1000":
    SIM_SEEDS={{seeds}} cargo nextest run -p jobs simulation --no-capture

# Known vulnerabilities; needs the network
audit:
    cargo deny check advisories
