#!/usr/bin/env bash
# Builds or tests wattlock-bridge, in a target folder of its own: scripts/setup/bridge.sh build | lint | test [CASE...]
#
# Its crate is not in the workspace, since librdkafka takes minutes to compile. It needs the
# headers of OpenSSL and zlib. Without Java and Maven the tests against a broker are skipped, with a line.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/bridge
what=${1:-build}
shift || true
cargo=(--locked --manifest-path crates/wattlock-bridge/Cargo.toml)
case $what in
    build) cargo build --release "${cargo[@]}" ;;
    lint) cargo clippy --release --all-targets "${cargo[@]}" -- -D warnings ;;
    test)
        cargo test --release --bins "${cargo[@]}"
        cargo test --release --test broker "${cargo[@]}" -- "$@"
        ;;
    *)
        echo "bridge.sh build | lint | test [CASE...]" >&2
        exit 2
        ;;
esac
