#!/bin/bash
# What `make check` does: everything that needs no container engine. Prints every complaint and
# fails at the end, so that one run shows all.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
step() { # NAME COMMAND...
  local name=$1 began=$SECONDS; shift
  if "$@"; then printf 'ok    %-14s %ss\n' "$name" $((SECONDS - began)); else printf 'FAIL  %s\n' "$name"; bad=1; fi
}

# beside runs a step while those after it run; finish waits for all of these, and prints what each said.
besides=()
beside() { # NAME COMMAND...
  (bad=0; step "$@"; exit $bad) >"$tools/$1.said" 2>&1 &
  besides+=("$! $tools/$1.said")
}
finish() {
  local one
  for one in "${besides[@]}"; do
    wait "${one%% *}" || bad=1
    cat "${one#* }"
  done
  besides=()
}

formatted() {
  local out
  out=$(gofmt -l $(git ls-files --cached --others --exclude-standard '*.go' | while read -r f; do [ -f "$f" ] && echo "$f"; done))
  [ -z "$out" ] || { echo "gofmt these files:"; echo "$out"; return 1; }
}
# Servers that only tests need are a module of their own (testservers): the checks of sources run in both.
in_modules() { # COMMAND...
  local dir bad=0
  for dir in . testservers; do (cd "$dir" && "$@") || bad=1; done
  return $bad
}
# golangci-lint when it is installed; otherwise the pinned staticcheck, built once by the go
# command; where neither can be had (no module proxy), vet alone has to do.
lint() {
  if command -v golangci-lint >/dev/null; then GOFLAGS=$flags in_modules golangci-lint run ./...; return; fi
  local tool=$PWD/.cache/staticcheck
  [ -x "$tool" ] || CGO_ENABLED=0 GOBIN=$PWD/.cache GOFLAGS= go install honnef.co/go/tools/cmd/staticcheck@v0.7.0 2>/dev/null || {
    echo "lint: neither golangci-lint nor staticcheck can be had; go vet has run"
    return 0
  }
  GOFLAGS=$flags in_modules "$tool" -checks "inherit,-ST1000,-ST1003,-ST1016,-ST1020,-ST1021,-ST1022,-ST1005,-SA1019" ./...
}

# go.mod and go.sum hold what the sources need and nothing else. The go command looks for that at every dependency, also at
# those of the dependencies' tests; where they cannot be downloaded, there is nothing to compare with.
tidy() {
  local diff err status=0
  err=$(mktemp)
  diff=$(go mod tidy -diff 2>"$err") || status=$?
  if [ -n "$diff" ]; then
    printf '%s\ntidy: run go mod tidy in %s\n' "$diff" "$PWD"
  elif [ $status -ne 0 ] && grep -qE 'proxyconnect|dial tcp|lookup .* on|module lookup disabled|i/o timeout|no such host' "$err"; then
    echo "tidy: modules cannot be downloaded here, so go.mod was not compared"
    status=0
  elif [ $status -ne 0 ]; then
    cat "$err"
  fi
  rm -f "$err"
  return $status
}

# Known vulnerabilities in code that is reached. The database is on the internet; without it nothing is known, and that is said.
vulnerabilities() {
  local tool=$PWD/.cache/govulncheck out status=0
  curl -sfo /dev/null -m 10 "${GOVULNDB:-https://vuln.go.dev}/index/modules.json.gz" || {
    echo "vulnerabilities: the database cannot be reached (GOVULNDB names another one), so nothing was looked up"
    return 0
  }
  [ -x "$tool" ] || CGO_ENABLED=0 GOBIN=$PWD/.cache GOFLAGS= go install golang.org/x/vuln/cmd/govulncheck@v1.9.0 2>/dev/null || {
    echo "vulnerabilities: govulncheck cannot be had, so nothing was looked up"
    return 0
  }
  out=$("$tool" ./... 2>&1) || status=$?
  [ $status -eq 0 ] || echo "$out"
  return $status
}

# The race detector needs a C compiler.
race=-race; command -v "${CC:-gcc}" >/dev/null || { race=; echo "tests run without -race: no C compiler; next: apt-get install gcc libc6-dev"; }
# vet, lint and tests read what the compiler made of the packages below, so all of them ask for the same: no package is compiled twice.
# Nobody needs what debuggers read. A collector that comes later takes a tenth of the processor time off, and memory is there.
flags="$race -gcflags=all=-dwarf=false"
export CGO_ENABLED=$([ -n "$race" ] && echo 1 || echo 0) GOGC=${GOGC:-400}
# Programs that only help: they are small, and linked once.
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
testdb=$tools/testdb
go build $flags -o "$tools/" ./scripts/testdb ./scripts/modules

# Types and component tests of the console; where there is no Node.js, that is said.
console() {
  command -v npm >/dev/null || { echo "console: npm is not installed, so the console was not checked"; return 0; }
  local out
  out=$(scripts/web.sh check 2>&1) || { echo "$out"; return 1; }
}

step gofmt formatted
step tidy in_modules tidy
step vet in_modules go vet $flags ./...
# The linter keeps one processor busy, and these one more.
beside console console
beside licences "$tools/modules" check
beside vulnerabilities vulnerabilities
beside architecture go test $flags -vet=off .
step lint lint
finish
# Many tests wait more than they compute, so more of them run at a time than there are cores. The packages that take longest begin
# first, so that none of them runs alone at the end. vet and architecture have run above.
longest=(./internal/testkit ./internal/manager/httpapi ./internal/manager/authztest ./cmd/berth ./internal/manager/app ./internal/storage/transfer
  ./internal/runner ./internal/manager/session)
# The oracle of the scheduler is one goroutine, in which the race detector finds nothing: it compares fewer clusters than in make test.
# What needs NVIDIA's library binds its functions when they are called (lazy), also where compilers do otherwise by default. Nothing here
# reads what the linker writes for debuggers (-s -w).
tests() {
  "$testdb" env BERTH_TEST_ENGINE= BERTH_ORACLE_CLUSTERS=300 \
    go test $flags "-ldflags=-s -w -extldflags=-Wl,-z,lazy" -vet=off -p 4 -parallel 6 -timeout 10m "${longest[@]}" $(go list ./... | grep -vx 'berth.dev/berth')
}
step tests tests
exit $bad
