#!/bin/bash
# What `make mutation` does: measure how much of the behaviour of the pure packages their tests notice. docs/mutation.md tells
# how to read the report.
#
#   scripts/mutation.sh [-all] [-n N] [-seed S] [-min 85] [-budget 40m] [-only REGEXP] [PACKAGE DIRECTORY...]
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
exec go run ./scripts/mutation "$@"
