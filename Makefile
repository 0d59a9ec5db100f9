# Two targets do everything on a fresh Debian or Ubuntu machine with a Rust toolchain:
#   make run    sets up, builds, seals and opens real input and prints what was chosen and how fast (INPUT=file or folder;
#               a folder is served over HTTPS, too, with Wattlock and without)
#   make test   sets up, builds, passes all tests
# Others: make build, make soak (long), make bench, make setup, make newer (what tests OpenSSL and nginx, with the next
# release lines of both, which are built from source), make fresh (these commands as a newcomer meets them: in bare
# roots of this release of Debian and of the next; about an hour, needs root).

SHELL := /bin/bash
export WATTLOCK := $(or $(CARGO_TARGET_DIR),target)/release/wattlock

.PHONY: run test build setup soak newer fresh bench clean

# build.sh ends with 3 where there are no sources of nginx: setup.sh installs them wherever there is a package.
run:
	scripts/setup.sh run
	cargo build --release --locked -p wattlock-cli -p wattlock-provider
	nginx/build.sh || { [ $$? = 3 ] && \
	    echo 'no module for nginx: neither `wattlock serve` nor `wattlock nginx enable` works'; }
	scripts/run.sh "$(INPUT)"

test:
	scripts/setup.sh test
	scripts/test.sh

build:
	scripts/setup.sh build
	cargo build --release --locked -p wattlock-cli

setup:
	scripts/setup.sh test

soak:
	scripts/setup.sh test
	scripts/soak.sh

newer:
	scripts/setup.sh test
	scripts/newer.sh cargo test --locked --no-fail-fast -p wattlock-provider
	scripts/newer.sh cargo test --locked --no-fail-fast -p wattlock-cli --test nginx --test openssl --test serve

fresh:
	scripts/fresh.sh

bench: build
	$(WATTLOCK) bench engines
	$(WATTLOCK) bench dispatch
	$(WATTLOCK) bench start
	$(WATTLOCK) bench files

clean:
	cargo clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts .venv
