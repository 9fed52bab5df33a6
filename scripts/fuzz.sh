#!/bin/bash
# What `make fuzz` does: run every fuzz target of the module for a while, one after the other. Prints a line for each and fails at
# the end when one found something; its input is then below testdata/fuzz of that package, and plain `go test` runs it from then on.
#
#   scripts/fuzz.sh [TIME [REGEXP]]      TIME for each target, 60s when not named; REGEXP chooses targets by package and name
set -uo pipefail
cd "$(dirname "$0")/.."
each=${1:-60s} only=${2:-.}
bad=0 ran=0
while IFS=: read -r file target; do
  package=./${file%/*}
  [[ "$package.$target" =~ $only ]] || continue
  ran=$((ran + 1))
  out=$(go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" "$package" 2>&1)
  rc=$?
  # Go itself fails now and then when the time is over and a worker is slow to end; that names no input.
  if [ $rc -ne 0 ] && [[ $out == *"context deadline exceeded"* && $out != *"Failing input"* ]]; then
    out=$(go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" "$package" 2>&1)
    rc=$?
  fi
  if [ $rc -eq 0 ]; then
    printf 'ok    %s %s: %s\n' "$package" "$target" "$(grep -oE 'execs: [0-9]+' <<<"$out" | tail -1)"
  else
    printf 'FAIL  %s %s\n%s\n' "$package" "$target" "$(tail -n 40 <<<"$out")"
    bad=1
  fi
done < <(git ls-files --cached --others --exclude-standard '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func /:/' | sort)
echo "fuzz: $ran targets, $each each"
[ $ran -gt 0 ] || bad=1
exit $bad
