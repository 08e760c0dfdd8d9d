# Every check by name; CI calls the same ones. See CONTRIBUTING.md.
CARGO ?= cargo
TARGET_DIR ?= target
JOBS ?= 2

# The crates that are no members of the workspace, and where they are built.
PYTHON_CRATE = --manifest-path bindings-python/Cargo.toml --locked
NODE_CRATE = --manifest-path bindings-node/Cargo.toml --locked
BINDINGS_TARGET = --target-dir "$(TARGET_DIR)/bindings"

.PHONY: helper quickstart checkpoints python node test test-python test-node fuzz fmt lint docs deny proto ci

# The one program that local sandboxes consist of, static, so that it runs in any root.
helper:
	@CARGO="$(CARGO)" JOBS=$(JOBS) TARGET_DIR="$(TARGET_DIR)" sh sandbox-local/helper.sh

# A host is killed in the middle of its work, and another one gets the same sandbox back.
# REPO=path takes another git repository than this one. SELECT= builds it as the whole workspace is built.
SELECT ?= -p sandhold-examples
quickstart: helper
	$(CARGO) run -j $(JOBS) --release $(SELECT) --bin quickstart -- $(or $(REPO),.)

# The work of a sandbox is kept after each turn, and goes on from a mirror after everything else is lost.
checkpoints: helper
	$(CARGO) run -j $(JOBS) --release $(SELECT) --features sandhold-examples/persist --bin checkpoints

# The package for Python with the helper inside, at target/wheels; needs maturin (`pip install maturin`).
python: helper
	mkdir -p bindings-python/python/sandhold/_bin
	cp -f --remove-destination "$(TARGET_DIR)/release/sandhold-helper" bindings-python/python/sandhold/_bin/
	CARGO_TARGET_DIR="$(abspath $(TARGET_DIR))/bindings" maturin build --release --locked -j $(JOBS) -m bindings-python/Cargo.toml --out "$(TARGET_DIR)/wheels"

# The package for Node.js with the helper inside, at target/npm; needs Node.js 20 or newer with npm.
node: helper
	$(CARGO) build --release -j $(JOBS) $(NODE_CRATE) $(BINDINGS_TARGET)
	cd bindings-node && npm ci --no-audit --no-fund
	NATIVE="$(abspath $(TARGET_DIR))/bindings/release/libsandhold_node.so" HELPER="$(abspath $(TARGET_DIR))/release/sandhold-helper" sh bindings-node/package.sh
	mkdir -p "$(TARGET_DIR)/npm"
	cd bindings-node && npm pack --pack-destination "$(abspath $(TARGET_DIR))/npm"

# The tests of the package for Python alone; part of `make test`.
test-python:
	$(CARGO) build -j $(JOBS) -p sandhold-local --bin sandhold-helper
	JOBS=$(JOBS) sh bindings-python/test.sh

# The tests of the package for Node.js alone; part of `make test`.
test-node:
	$(CARGO) build -j $(JOBS) -p sandhold-local --bin sandhold-helper
	CARGO="$(CARGO)" JOBS=$(JOBS) sh bindings-node/test.sh

# Every test, by any user; what a test lacks on this machine is printed as `skipped: needs ...`.
test:
	CARGO="$(CARGO)" JOBS=$(JOBS) sh .ci/test

# What strangers send to a server, for FUZZ_SECONDS each; needs cargo-fuzz and a C++ compiler.
fuzz:
	for target in bundles envelopes manifests metadata_filter multipart packs persist_config signature vaults; do \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --dev --sanitizer none $$target -- \
			-max_total_time=$(or $(FUZZ_SECONDS),20) -max_len=4096 -rss_limit_mb=4096 -print_final_stats=1 || exit 1; \
	done

fmt:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path bindings-python/Cargo.toml --check
	$(CARGO) fmt --manifest-path bindings-node/Cargo.toml --check

# Each feature alone and all together.
lint:
	$(CARGO) clippy -j $(JOBS) --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-core --no-default-features -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-examples -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-envd --no-default-features -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-envd --no-default-features --features tls -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-envd --no-default-features --features daemon -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-persist --no-default-features -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-registry --no-default-features -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-registry --no-default-features --features sqlite -- -D warnings
	$(CARGO) clippy -j $(JOBS) -p sandhold-registry --no-default-features --features postgres -- -D warnings
	for features in s3 gcs azure; do \
		$(CARGO) clippy -j $(JOBS) -p sandhold-persist --features $$features -- -D warnings || exit 1; \
	done
	$(CARGO) clippy -j $(JOBS) $(PYTHON_CRATE) $(BINDINGS_TARGET) -- -D warnings
	$(CARGO) clippy -j $(JOBS) $(NODE_CRATE) $(BINDINGS_TARGET) -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -j $(JOBS) --workspace --all-features --no-deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -j $(JOBS) $(PYTHON_CRATE) $(BINDINGS_TARGET) --no-deps
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -j $(JOBS) $(NODE_CRATE) $(BINDINGS_TARGET) --no-deps

deny:
	$(CARGO) deny --all-features check bans licenses sources
	$(CARGO) deny --manifest-path bindings-python/Cargo.toml --config deny.toml check bans licenses sources
	$(CARGO) deny --manifest-path bindings-node/Cargo.toml --config deny.toml check bans licenses sources

# Writes the descriptors of the protocol again from its .proto files; needs protoc.
proto:
	sh sandbox-envd/proto/regenerate.sh

ci:
	bash .ci/run
