#!/bin/bash
# Starts and stops a Docker engine where nothing else manages one (containers, CI runners, machines
# without systemd). A machine whose engine already answers is left alone.
#
#   scripts/engine.sh ensure    an engine answers afterwards, or the reason is printed
#   scripts/engine.sh stop      stops the engine that "ensure" started, and no other
#   scripts/engine.sh status
#
# Environment:
#   BERTH_ENGINE_DIR    where the pid and the log are kept, default /var/lib/berth-engine
#   BERTH_ENGINE_FLAGS  more flags for dockerd, separated by spaces
#   DOCKER_HOST         only unix:// sockets can be started here
set -euo pipefail

dir=${BERTH_ENGINE_DIR:-/var/lib/berth-engine}
host=${DOCKER_HOST:-unix:///var/run/docker.sock}
log=$dir/dockerd.log
pidfile=$dir/dockerd.pid

say() { printf '%s\n' "$*" >&2; }
die() { say "engine: $1"; [ -z "${2:-}" ] || say "  next: $2"; exit 1; }

answers() { DOCKER_HOST=$host timeout 30 docker version --format '{{.Server.Version}}' 2>/dev/null; }

# ours prints the pid of the engine that we started, when it still runs.
ours() {
  local pid
  pid=$(cat "$pidfile" 2>/dev/null) || return 1
  [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 1
  # One that has ended, and that nobody has waited for, does not run.
  ! grep -q '^State:[[:space:]]*Z' "/proc/$pid/status" 2>/dev/null || return 1
  echo "$pid"
}

ensure() {
  command -v docker >/dev/null || die "the docker command is missing" "apt-get install docker.io"
  local version
  if version=$(answers); then
    say "engine: docker $version answers at $host"
    return
  fi
  case $host in
    unix://*) ;;
    *) die "nothing answers at $host" "start that engine, or unset DOCKER_HOST" ;;
  esac
  if [ "$(id -u)" != 0 ]; then
    [ ! -S "${host#unix://}" ] || die "the engine's socket ${host#unix://} is closed to this user" "add the user to the group docker: usermod -aG docker $(id -un)"
    die "no engine runs and only root can start one" "sudo $0 ensure"
  fi
  if [ -d /run/systemd/system ]; then
    systemctl start docker || die "systemd could not start docker" "systemctl status docker"
  else
    command -v dockerd >/dev/null || die "dockerd is missing" "apt-get install docker.io"
    start
  fi
  wait_ready
  say "engine: docker $(answers) answers at $host"
}

# child is the engine that start found or has started; one that has just started writes its pid into the file a while later.
child=

start() {
  if child=$(ours); then return; fi
  mkdir -p "$dir"
  # A root without CAP_SYS_RESOURCE cannot raise its limits, and neither can the engine for its
  # containers: give both what this process has.
  local nofile
  ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
  nofile=$(ulimit -n)
  [ "$nofile" != unlimited ] || nofile=1048576
  local args=(--host "$host" --pidfile "$pidfile" --default-ulimit "nofile=$nofile:$nofile" --log-level warn)
  # Containers outlive the engine: a crash or an upgrade of it ends no session.
  args+=(--live-restore)
  local more
  read -ra more <<<"${BERTH_ENGINE_FLAGS:-}"
  # Kernels without the tables of iptables cannot do the default network; say so and go on without it.
  if ! iptables -t nat -L -n >/dev/null 2>&1; then
    say "engine: this kernel has no NAT tables, containers get no network"
    args+=(--iptables=false --bridge=none)
  fi
  args+=("${more[@]}")
  # A crashed engine leaves its socket and pid behind.
  rm -f "${host#unix://}" "$pidfile"
  : >"$log"
  setsid nohup dockerd "${args[@]}" >>"$log" 2>&1 </dev/null &
  child=$!
}

wait_ready() {
  local end=$((SECONDS + 120))
  while [ "$SECONDS" -lt "$end" ]; do
    if answers >/dev/null; then return; fi
    if [ -n "$child" ] && ! kill -0 "$child" 2>/dev/null; then
      tail -n 15 "$log" >&2
      die "dockerd ended while starting" "read $log"
    fi
    sleep 0.1
  done
  tail -n 15 "$log" >&2 2>/dev/null || true
  die "the engine did not answer within 120 s" "read $log"
}

stop() {
  local pid end=$((SECONDS + 120))
  if ! pid=$(ours); then
    say "engine: none of ours runs"
    return
  fi
  kill -TERM "$pid"
  while [ "$SECONDS" -lt "$end" ]; do
    ours >/dev/null || { rm -f "$pidfile"; say "engine: stopped"; return; }
    sleep 0.1
  done
  die "dockerd (pid $pid) did not stop within 120 s" "kill -KILL $pid"
}

case ${1:-} in
  ensure) ensure ;;
  stop) stop ;;
  status)
    if version=$(answers); then say "engine: docker $version answers at $host"; else die "nothing answers at $host" "$0 ensure"; fi ;;
  *) die "unknown verb '${1:-}'" "run $0 ensure, stop or status" ;;
esac
