#!/bin/bash
# Regenerates everything that is generated. The tools are built at pinned versions into .cache/.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOBIN=$PWD/.cache CGO_ENABLED=0
mkdir -p "$GOBIN"
tool() { # NAME MODULE@VERSION
  [ -x "$GOBIN/$1" ] || GOFLAGS= go install "$2"
}
tool sqlc github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
tool protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
tool protoc-gen-go-grpc google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0
command -v protoc >/dev/null || { echo "gen: protoc is missing; next: apt-get install protobuf-compiler" >&2; exit 1; }
PATH=$GOBIN:$PATH go generate ./...
