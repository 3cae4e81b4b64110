# `make run` and `make test` are all that a user needs; `make help` lists the rest.
CARGO ?= cargo
export CARGO
# Nothing is built twice there, and what rustc keeps for a second build takes more room than the build itself.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
export KINDRED_BIN_DIR ?= $(CURDIR)/target/debug

.PHONY: help run test test-all verify fix docs soak sim fuzz bench instructions

## Use kindred

# run: build and start the router on 127.0.0.1:2379 with its default shards (Ctrl-C stops all; ARGS="…" are flags of `kindred up`)
run:
	$(CARGO) build --release --locked --bin kindred
	./target/release/kindred up $(ARGS)

## Change kindred

# test: install the pinned peers and run the quick tests (ONLY="NAME…": those with a NAME in theirs, with what they print)
test:
	tests/run quick $(ONLY)

# test-all: the same, and all tests and cases that take long (docs/testing.md says which)
test-all:
	tests/run all $(ONLY)
	$(if $(ONLY),,tests/soak 30)

# verify: what must hold before a commit, without changing the tree
verify:
	.ci/verify

# fix: format, and apply clippy's suggestions
fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# docs: write what is generated anew: the API's code, pages on commands, flags, fields and metrics, and what the chart renders
docs:
	$(CARGO) run --quiet --locked -p kindred-proto-gen --bin kindred-proto-gen
	KINDRED_DOCS=write $(CARGO) test --quiet --workspace --locked --lib docs_tests
	KINDRED_DOCS=write $(CARGO) test --quiet --workspace --locked --test it deploy::kustomize

## Look for faults

# soak: every random test with new seeds for MINUTES (60), or from SEED on; what fails is printed with what replays it
soak:
	tests/soak $(or $(MINUTES),60) $(SEED)

# sim: one seed of a simulation with its log (SEED=1), or SEEDS from a random one on (SIM=standbys or netsim: another one)
sim:
	tests/sim/run $(SIM)

# fuzz: any bytes as a shard's files and as an HTTP/2 client, for SECONDS (60) each; needs `cargo install --locked cargo-fuzz`
fuzz:
	cd shard/wal && $(CARGO) fuzz run --sanitizer none decode -- -max_total_time=$(or $(SECONDS),60)
	cd proto/http2 && $(CARGO) fuzz run --sanitizer none receive -- -max_total_time=$(or $(SECONDS),60)

## Measure

# bench: CPU per operation beside a real etcd, in bench/results (ARGS="moves", "disk", "apiserver" or others: bench/run)
bench:
	bench/run $(ARGS)

# instructions: instructions of a shard and a router for one operation (needs valgrind); fails above those of bench/instructions
instructions:
	bench/run instructions --check bench/instructions

help:
	@sed -nE 's/^## (.*)/\n\1/p; s/^# ([a-z-]+): (.*)/  \1\n      \2/p' Makefile
