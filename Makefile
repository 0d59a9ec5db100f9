# Two targets do everything on a fresh Debian or Ubuntu machine with a Rust toolchain:
#   make run    sets up, builds, and shows the main job beside cp, age and the stock nginx; ends with some lines and a
#               page (INPUT=file or folder takes yours)
#   make test   sets up, builds, passes all tests
# Others: make build, make soak (long), make bench, make setup, make newer (what tests OpenSSL and nginx, with the next
# release lines of both, which are built from source).

SHELL := /bin/bash
export WATTLOCK := $(or $(CARGO_TARGET_DIR),target)/release/wattlock

.PHONY: run test build install uninstall setup soak newer bench clean

run:
	scripts/setup.sh run
	cargo build --release --locked -p wattlock-cli -p wattlock-provider
	nginx/build.sh || echo 'without the module for nginx, folders cannot be served'
	scripts/run.sh "$(INPUT)"

test:
	scripts/setup.sh test
	scripts/test.sh

build:
	scripts/setup.sh build
	cargo build --release --locked -p wattlock-cli -p wattlock-provider
	nginx/build.sh || echo 'without the module for nginx'

# Builds nothing, so that `sudo make install` leaves no files of root's in the build folder.
install uninstall:
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" FORCE="$(FORCE)" scripts/install.sh $@

setup:
	scripts/setup.sh test

soak:
	scripts/setup.sh test
	scripts/soak.sh

newer:
	scripts/setup.sh test
	scripts/newer.sh cargo test --locked --no-fail-fast -p wattlock-provider
	scripts/newer.sh cargo test --locked --no-fail-fast -p wattlock-cli --test nginx --test openssl --test serve
	cargo build --release --locked -p wattlock-provider && scripts/evp-test.sh && scripts/evp-test.sh "$${NEWER_SUITE:-trixie}"

# Every table, and each as JSON in target/bench. Some twenty minutes on two cores that have nothing else to do.
bench:
	scripts/setup.sh run
	cargo build --release --locked -p wattlock-cli -p wattlock-provider
	nginx/build.sh || echo 'without the module for nginx, `bench https` is left out'
	scripts/bench.sh

clean:
	cargo clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts .venv
