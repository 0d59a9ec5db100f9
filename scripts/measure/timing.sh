#!/bin/sh
# Do passes of lanes take longer for some secrets than for others? Random secrets against a fixed one, beside the fixed one
# against itself, in many processes for every kind of lanes that has a secret, with two leaky controls that must be noticed.
# Fails for a leak, and if a control is missed; the module's text says what a verdict takes. About half a minute a kind,
# longer for RSA:
#
#   scripts/measure/timing.sh [--seconds N] [--processes N] [--json FILE] [KIND]...
set -eu
cd "$(dirname "$0")/../.."
exec cargo run --release --quiet --locked -p wattlock-cpu --example lanes_timing -- "$@"
