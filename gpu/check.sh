#!/usr/bin/env bash
# The kernels on this machine's GPU, from an unpacked bundle of gpu/bundle.sh: check.sh [OUT.json]. Needs a driver and
# Python; no network, no compiler. Changes no setting of the card. At most eight minutes; OUT.json grows by phases.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
timeout 480 python3 "$here/check.py" "$here" "${1:-gpu-check.json}" 400
