# Steps of a script that run beside others; to be sourced by bash.
#
#   beside NAME COMMAND [ARGUMENT...]   starts a step
#   finish NAME                         waits for it; false, with what the step said, when it failed
#   end_steps                           ends what still runs, and forgets what steps said

declare -A steps=()
said=$(mktemp -d)

beside() {
  local name=$1
  shift
  "$@" >"$said/$name" 2>&1 &
  steps[$name]=$!
}

finish() {
  local process=${steps[$1]}
  unset "steps[$1]"
  if wait "$process"; then return; fi
  cat "$said/$1" >&2
  return 1
}

end_steps() {
  local name
  for name in "${!steps[@]}"; do kill "${steps[$name]}" 2>/dev/null || true; done
  rm -rf "$said"
}
