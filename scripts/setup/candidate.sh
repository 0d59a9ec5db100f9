#!/bin/sh
# Has apt anything to install under this name? Exit status: 0 if so, 1 if not, 2 if apt does not say. (`apt-cache show`
# would not do: it is content with a name that other packages mention.)
set -eu
# All of it is read before it is looked at. What leaves a pipe early (`grep -q`) kills the writer, and under `pipefail`
# the answer then hangs on which of the two was quicker.
told=$(LC_ALL=C apt-cache policy "$1") || exit 2
case $told in
    *"Candidate: (none)"*) exit 1 ;;
    *"Candidate: "*) exit 0 ;;
    *) exit 1 ;;
esac
