# Two targets do everything on a fresh Debian or Ubuntu machine with a Rust toolchain:
#   make run    sets up, builds, and shows the main job beside cp, age and the stock nginx; ends with some lines and a
#               page (INPUT=file or folder takes yours)
#   make test   sets up, builds, passes all tests
#   make check  before a commit: format, lints, links, the tests inside the sources; installs nothing
# Others: make build, make install and make uninstall (PREFIX, DESTDIR), make bench, make setup, make soak (long; HOURS=
# gives all doors at once for so long), make fuzz (MINUTES, TARGETS: all fuzz targets with the address sanitizer, from
# kept corpora), make mutants (CRATE, SHARD: do its tests notice faults?), make bridge and make bridge-test (for Kafka),
# make gpu (the kernels of the GPU engine for all chips; fetches their compiler, needs no GPU),
# make newer (what tests OpenSSL and nginx, with the next release lines of both, which are built from source),
# make sizes (what users load is as small as promised and has no emulated cards in it),
# make package and make package-test (Debian's packages, in clean roots, and what they promise; RELEASE=own, next or all;
# needs root),
# make fresh (these commands as a newcomer meets them: in bare roots of this release of Debian and of the next; about an
# hour, needs root), make release-check (each long check once on a release's code; hours, goes on where it was cut off).

SHELL := /bin/bash
export WATTLOCK := $(or $(CARGO_TARGET_DIR),target)/release/wattlock

.PHONY: run test check build sizes package package-test release-check bridge bridge-test install uninstall setup soak fuzz mutants newer fresh bench gpu clean

run: build
	scripts/setup/run.sh "$(INPUT)"

test:
	scripts/setup/setup.sh test
	scripts/test/test.sh

check:
	scripts/test/check.sh

# build.sh ends with 3 where there are no sources of nginx: setup.sh installs them wherever there is a package.
build:
	scripts/setup/setup.sh run
	scripts/setup/quiet.sh 'building (some minutes, once)' \
	    cargo build --release --locked -p wattlock-cli -p wattlock-bench -p wattlock-lab -p wattlock-provider -p wattlock-emulated -p wattlock-gpu
	scripts/release/pages.sh
	nginx/build.sh || { [ $$? = 3 ] && \
	    echo 'no module for nginx: neither `wattlock serve` nor `wattlock nginx enable` works'; }

# Are the stripped files as small, and the system they need as old, as promised?
sizes: build
	scripts/release/sizes.sh

# Into target/packages/SUITE.
package:
	scripts/release/package.sh $(or $(RELEASE),own)

package-test:
	scripts/release/package-test.sh $(or $(RELEASE),own)

# CHECKS names some. `scripts/release/check.py --due` says what would run, and why.
release-check:
	scripts/release/check.py $(CHECKS)

# `wattlock stream bridge`: contains librdkafka, which takes minutes to compile.
bridge:
	scripts/setup/bridge.sh build

# Against a real broker, if Java and Maven are there. CASES names some.
bridge-test:
	scripts/setup/bridge.sh test $(CASES)

# Builds nothing, so that `sudo make install` leaves no files of root's in the build folder.
install uninstall:
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" FORCE="$(FORCE)" scripts/release/install.sh $@

setup:
	scripts/setup/setup.sh test

# With HOURS: all doors at once for so long (scripts/soak/together), and nothing else. JSON=FILE keeps the result.
ifneq ($(HOURS),)
soak: build
	if command -v java >/dev/null; then scripts/setup/bridge.sh build; fi
	python3 scripts/soak/together --hours "$(HOURS)" $(if $(JSON),--json "$(JSON)")
else
soak:
	scripts/setup/setup.sh test
	scripts/soak/soak.sh
endif

# Finds are in target/fuzz-finds; what was covered is in target/fuzz.json.
fuzz:
	scripts/setup/setup.sh test
	scripts/test/fuzz.py --minutes $(or $(MINUTES),10) $(TARGETS)

# CRATE=policy; SHARD=K/N is the K-th sample of N. Wants cargo-mutants.
mutants:
	scripts/test/mutants.sh $(CRATE) $(SHARD)

newer:
	scripts/setup/setup.sh test
	scripts/test/newer.sh cargo test --locked --no-fail-fast -p wattlock-provider
	scripts/test/newer.sh cargo test --locked --no-fail-fast -p wattlock-cli --test all -- nginx:: openssl:: serve::
	scripts/test/newer.sh cargo test --locked --no-fail-fast -p wattlock-bench --test https
	cargo build --release --locked -p wattlock-provider && scripts/test/evp-test.sh && scripts/test/evp-test.sh "$${NEWER_SUITE:-trixie}"

fresh:
	scripts/release/fresh.sh

# Every table, and each as JSON in target/bench. Some twenty minutes on two cores that have nothing else to do.
bench: build
	scripts/measure/bench.sh

gpu:
	scripts/setup/setup.sh test
	gpu/build.sh $(or $(CARGO_TARGET_DIR),target)/gpu
	python3 gpu/tools/count.py $(or $(CARGO_TARGET_DIR),target)/gpu/tools $(or $(CARGO_TARGET_DIR),target)/gpu sm_90

clean:
	cargo clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts .venv
