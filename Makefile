# Berth. `make up` on a bare Debian machine with Go gives a running cluster; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
export CGO_ENABLED ?= 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X berth.dev/berth/internal/chassis.version=$(VERSION)
# How programs are compiled. One way for all of them, so that no package is compiled twice, and without what debuggers read, which LDFLAGS
# leaves out anyway. The compiler's collector waits until a process has 1.2 GB, which only the largest packages reach: that takes a tenth
# of the processor time off. Packages that are large and of which nothing is called often are compiled without inlining, which takes a third
# off theirs: what gqlgen generates, the builder of Redis commands, and the clients of TPMs, S3 and netlink.
RARELY_CALLED := berth.dev/berth/internal/manager/graphapi/gqlexec github.com/valkey-io/valkey-go/internal/cmds \
	github.com/google/go-tpm/tpm2 github.com/minio/minio-go/v7 github.com/vishvananda/netlink
COMPILE := -trimpath -gcflags=all=-dwarf=false $(foreach p,$(RARELY_CALLED),'-gcflags=$(p)=-dwarf=false -l')
GO_COMPILE := GOGC=$${GOGC:-off} GOMEMLIMIT=$${GOMEMLIMIT:-1200MiB} go
# The console takes Node.js and npm to build; CONSOLE=0 leaves it out.
CONSOLE ?= $(shell command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 && echo 1 || echo 0)
comma := ,
EMBED := runner$(if $(filter 1,$(CONSOLE)),$(comma)console)
TAGS = $(EMBED)
# BUNDLE=1 puts PostgreSQL into the binary; the default does so where none is installed.
BUNDLE ?= $(shell command -v postgres >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || echo 1)
ifeq ($(BUNDLE),1)
TAGS = $(EMBED),pgbundle
BUNDLE_DEP := bundle
endif

# The helper for NVIDIA GPUs needs cgo. NVIDIA's header marks functions as old that nobody here calls. The functions of NVIDIA's library
# are bound when they are called (lazy): the library is loaded later, and drivers differ in which functions they have.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
NVML_LDFLAGS := -s -w -X berth.dev/berth/internal/nvmlhelper.version=$(VERSION) -extldflags=-Wl,-z,lazy

.PHONY: help up down build compile runner web bundle nvml check test test-quota test-gpu e2e soak chaos bench mutation fuzz sbom images gen deps lint

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

up: ## install what is missing, build, start a cluster, run a first session
	scripts/up.sh

down: ## stop the cluster; containers keep running
	@if [ -x bin/berth ]; then bin/berth down; else echo "nothing is built"; fi

build: runner $(if $(filter 1,$(CONSOLE)),web) $(BUNDLE_DEP) ## build bin/berth
	$(GO_COMPILE) build $(COMPILE) -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/berth ./cmd/berth

# Compiles the packages of all programs into the cache of Go, but links none, so that `build` has little more to do. It needs no generated
# file: scripts/up.sh runs it while packages are being installed.
compile:
	$(GO_COMPILE) build $(COMPILE) $$(go list -deps -f '{{if and (not .Standard) (ne .Name "main")}}{{.ImportPath}}{{end}}' \
		./cmd/berth ./cmd/berth-runner ./e2e/webdemo ./scripts/pack)

runner:
	@$(GO_COMPILE) build $(COMPILE) -ldflags '-s -w' -o bin/berth-runner ./cmd/berth-runner
	@$(GO_COMPILE) run $(COMPILE) ./scripts/pack zstd bin/berth-runner internal/runnerbin/berth-runner.zst

web: ## build the console, when its sources have changed
	@scripts/web.sh

bundle:
	@scripts/pg-bundle.sh

nvml: ## build bin/berth-nvml, the helper for hosts with NVIDIA GPUs; it takes a C compiler
	@command -v "$${CC:-gcc}" >/dev/null || { echo "nvml: there is no C compiler; next: apt-get install gcc libc6-dev" >&2; exit 1; }
	CGO_ENABLED=1 $(GO_COMPILE) build -trimpath -ldflags '$(NVML_LDFLAGS)' -o bin/berth-nvml ./cmd/berth-nvml

deps: ## install the Debian packages that are missing
	scripts/install-deps.sh

images: ## build the base images
	images/build.sh

check: ## format, go.mod, vet, lint, architecture, unit and PostgreSQL tests with -race; no engine
	scripts/check.sh

# Tests are compiled as the programs are (GOFLAGS), so that what both are made of is compiled once.
test: ## everything, with the real engine
	GOFLAGS="$(COMPILE)" scripts/test.sh

test-quota: build ## what needs XFS quotas, in user-mode Linux or QEMU
	scripts/xfs-quota.sh

test-gpu: ## the helper for NVIDIA GPUs, and the GPUs of this machine where it has some
	scripts/test-gpu.sh

e2e: build ## the stories alone, with the real engine
	GOFLAGS="$(COMPILE)" scripts/test.sh ./e2e/...

soak: ## simulate 10,000 clusters with faults (SEEDS=... FIRST=... for others)
	BERTH_SIM_SEEDS=$(or $(SEEDS),10000) BERTH_SIM_FIRST=$(or $(FIRST),1) go test ./internal/testkit/simulation -run '^TestSimulation$$' \
		-count 1 -timeout 12h -v

chaos: build ## break a real cluster again and again and print a table (TIME=20m bounds it; LONG=1, ONLY='cut agent,kill database')
	scripts/install-deps.sh test
	BERTH_TEST_ENGINE=1 BERTH_BIN=$(CURDIR)/bin/berth BERTH_CHAOS_TIME=$(or $(TIME),20m) BERTH_CHAOS_LONG=$(LONG) \
		BERTH_CHAOS_ONLY='$(ONLY)' go test ./e2e -run '^TestChaos$$' \
		-count 1 -timeout 2h -v

bench: build ## measure beside peers
	scripts/bench.sh

mutation: ## measure what the tests of the pure packages notice
	scripts/mutation.sh $(ARGS)

fuzz: ## run every fuzz target for a minute (TIME=10s for less)
	scripts/fuzz.sh $(TIME)

sbom: ## list what a release is built of, in bin/berth.cdx.json
	@mkdir -p bin
	go run ./scripts/modules sbom -version '$(VERSION)' -out bin/berth.cdx.json

gen: ## regenerate SQL, protobuf, GraphQL and drawings
	scripts/gen.sh
