#!/bin/sh
# Do passes of lanes take longer for some secrets than for others? Fixed against random secrets, Welch's t-test, for
# every kind of lanes there is, with a leaky control that must be noticed. Fails for a leak, and if the control is
# missed. Takes about ten seconds a kind:
#
#   scripts/timing.sh [--seconds N] [KIND]...
set -eu
cd "$(dirname "$0")/.."
exec cargo run --release --quiet -p wattlock-cpu --example lanes_timing -- "$@"
