#!/bin/bash
# Regenerates everything that is generated: SQL, protobuf, GraphQL, the types of the console and the drawing of the states.
# The tools are built at pinned versions into .cache/, once per version.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
# tool builds in a throw-away module that requires the version: unlike `go install`, that asks the
# module proxy for nothing but this version.
tool() { # MODULE VERSION [PACKAGE BELOW IT]
  local package=$1${3:+/$3} work
  local bin=$PWD/.cache/gen/${package##*/}@$2
  if [ ! -d "$bin" ]; then
    echo "gen: building $package $2" >&2
    work=$(mktemp -d)
    if ! (cd "$work" && go mod init tool && go mod edit -require "$1@$2" && GOFLAGS=-mod=mod go build -o "bin/${package##*/}" "$package") >"$work/log" 2>&1; then
      tail -n 15 "$work/log" >&2
      rm -rf "$work"
      return 1
    fi
    mkdir -p "${bin%/*}"
    mv "$work/bin" "$bin"
    rm -rf "$work"
  fi
  PATH=$bin:$PATH
}
tool github.com/sqlc-dev/sqlc v1.31.1 cmd/sqlc
tool google.golang.org/protobuf v1.36.12 cmd/protoc-gen-go
tool google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.0
tool github.com/99designs/gqlgen v0.17.86
command -v protoc >/dev/null || { echo "gen: protoc is missing; next: apt-get install protobuf-compiler" >&2; exit 1; }

(cd internal/manager/store && sqlc generate)
(cd internal/wire/node && protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative node.proto)
(cd internal/manager/graphapi && gqlgen generate --config gqlgen.yml)
go run ./scripts/tstypes web/src/api/types.ts web/src/api/graph.ts
go test ./internal/cluster -run '^TestDrawing$' -update
go test ./internal/manager/authztest -run '^TestDocument$' -update
