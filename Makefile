# Two commands matter: `make run` and `make test`. The rest is for those who change kindred.
CARGO ?= cargo
# Nothing is built twice there, and what rustc keeps for a second build takes more room than the build itself.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
PROFILE_DIR := target/debug
export KINDRED_BIN_DIR ?= $(CURDIR)/$(PROFILE_DIR)

.PHONY: run test adopt-demo clients verify fix bench bench-moves bench-disk bench-apiserver instructions peers build docs kube netsim sim soak fuzz crash kills valgrind previous upgrade

## run: build and start the router on 127.0.0.1:2379 with its default shards (Ctrl-C stops all)
run:
	$(CARGO) build --release --locked --bin kindred
	./target/release/kindred up $(ARGS)

## test: install the pinned peers, the previous build, and valgrind where that can be done, then run every test
test: peers valgrind previous build
	tests/in-memory $(CARGO) test --workspace --locked $(TESTARGS)

## netsim: SEEDS (500) more seeds of the simulated network, from FIRST on
FIRST ?= 1
netsim:
	KINDRED_NETSIM_FIRST=$(FIRST) KINDRED_NETSIM_SEEDS=$(or $(SEEDS),500) $(CARGO) test --workspace --locked --test netsim seeds -- --nocapture

## crash: shards end at every step on their way to the disk, and at any moment for SECONDS (600), under load; then what each durability promises is looked for
crash: build
	CRASH_POINTS=all CRASH_SECONDS=$(or $(SECONDS),600) CRASH_SEED=$(or $(SEED),$(shell date +%s)) tests/in-memory $(CARGO) test --workspace --locked --test crash -- --test-threads 1 --nocapture

## kills: kills and cuts at every step of a move, all of them or those with CASES in their names (such as seal.after, kill-source)
kills: build
	KILLS=$(or $(CASES),all) tests/in-memory $(CARGO) test --workspace --locked --test kills -- --nocapture

## docs: write what is generated anew: commands and flags, fields of the configuration, what the chart renders for kustomize
docs:
	KINDRED_DOCS=write $(CARGO) test --quiet --workspace --locked --bin kindred docs_tests
	KINDRED_DOCS=write $(CARGO) test --quiet --package kindred-tests --locked --test deploy the_files

# It counts instructions. Without it that one test says so and measures nothing.
valgrind:
	@command -v vgdb >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -q update >/dev/null && apt-get -qy install valgrind >/dev/null; } || echo "instructions will not be counted: install valgrind" >&2

build:
	$(CARGO) build --workspace --locked --bins

# It comes before `build`, which puts the programs of this work tree in place. Without git's history the tests say that nothing ran.
previous:
	CARGO=$(CARGO) tests/upgrade/install

## upgrade: a cluster goes from the previous build (tests/upgrade/PREVIOUS) to this one, back, and forth again, under load
upgrade: previous build
	tests/in-memory $(CARGO) test --workspace --locked --test upgrade -- --nocapture

## peers: etcd, etcdctl, kube-apiserver and kubectl, and clients of etcd with their tests, from their registries and cached
peers:
	tests/peers/install

## clients: the client libraries with CLIENTS in their names (all; "API": etcd's tests of its API, which `make test` leaves out) at etcd, a shard and a router
clients: peers build
	KINDRED_CLIENTS="$(CLIENTS)" tests/in-memory $(CARGO) test --workspace --locked --test compatibility clients:: -- --nocapture

## verify: what must hold before a commit, without changing the tree
verify:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --workspace --no-deps --locked
	$(CARGO) run --quiet --locked -p kindred-proto-gen --bin kindred-proto-gen -- --check
	.ci/tidy
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check licenses bans sources; else echo "cargo-deny is not installed: cargo install --locked cargo-deny" >&2; exit 1; fi

## fix: format and apply clippy's suggestions
fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

## bench: CPU per operation of kindred beside a real etcd (and MEM_ETCD=PROGRAM), as a table and plots in bench/results
bench:
	tests/peers/install etcd
	$(CARGO) build --release --locked -p kindred-bench -p kindred-shard -p kindred-router -p kindred
	KINDRED_BIN_DIR=$(CURDIR)/target/release ./target/release/kindred-bench $(BENCH_OUT) $(ARGS)
	$(if $(ARGS),,KINDRED_BIN_DIR=$(CURDIR)/target/release ./target/release/kindred-bench headline --out bench/results)
# Only the table, not what a subcommand in ARGS prints, is written into files.
BENCH_OUT = $(if $(filter -%,$(firstword $(ARGS) -)),--out bench/results)

## instructions: instructions of a shard and a router for one operation (needs valgrind); fails above those of bench/instructions
instructions:
	$(CARGO) build --release --locked -p kindred-bench -p kindred-shard -p kindred-router
	KINDRED_BIN_DIR=$(CURDIR)/target/release ./target/release/kindred-bench instructions --check bench/instructions

## bench-moves: what clients see while Kinds of KEYS (200000) keys move, split, re-hash and are drained
bench-moves:
	$(CARGO) build --release --locked -p kindred-bench -p kindred
	bench/moves

## bench-disk: restarts with OBJECTS (1000000), writes on disk beside etcd on the same disk, and a backup under load
bench-disk: peers
	$(CARGO) build --release --locked -p kindred-bench -p kindred-shard -p kindred
	KINDRED_BIN_DIR=$(CURDIR)/target/release ./target/release/kindred-bench restart --objects $(or $(OBJECTS),1000000)
	KINDRED_BIN_DIR=$(CURDIR)/target/release ./target/release/kindred-bench fsync
	bench/backup

## adopt-demo: a cluster with OBJECTS (5000) on a stock etcd goes to kindred, is used, and leaves for another etcd, step by step
adopt-demo: peers build
	KINDRED_ADOPT_OBJECTS=$(or $(OBJECTS),5000) tests/in-memory $(CARGO) test --workspace --locked --test kube -- kubernetes_adopts_kindred_and_leaves_it --nocapture

## bench-apiserver: what a real kube-apiserver's writes take over kindred in each durability, and over etcd, on the same disk
bench-apiserver: peers
	$(CARGO) build --release --locked -p kindred -p kindred-shard -p kindred-router -p kindred-tests
	KINDRED_BIN_DIR=$(CURDIR)/target/release ./target/release/kindred-apiserver-writes

## sim: one seed of the simulation with its log (SEED=1), or many from a random one on (SEEDS=100000)
sim:
	$(CARGO) build --quiet --locked -p kindred-sim
	SIM=$(SIM) $(if $(SEED),SEED=$(SEED)) $(if $(SEEDS),SEEDS=$(SEEDS)) $(PROFILE_DIR)/kindred-sim

## soak: every random test with new seeds for MINUTES (60), or from SEED on; what fails is printed with what replays it
soak: build
	$(CARGO) test --workspace --locked --no-run
	tests/soak $(or $(MINUTES),60) $(SEED)

## fuzz: any bytes as a shard's files and as an HTTP/2 client, for SECONDS (60) each; needs `cargo install --locked cargo-fuzz`
fuzz:
	cd shard/wal && $(CARGO) fuzz run --sanitizer none decode -- -max_total_time=$(or $(SECONDS),60)
	cd proto/http2 && $(CARGO) fuzz run --sanitizer none receive -- -max_total_time=$(or $(SECONDS),60)
