#!/bin/bash
# Installs the Debian packages that are missing, and nothing else.
#
#   scripts/install-deps.sh [images|test|bench|quota|qemu]
#
# "images" is what building images takes, alone; "test" adds what only the tests need, "bench" also the peers of measurements; "quota" what
# user-mode Linux takes for those of XFS quotas, "qemu" what QEMU takes for them.
#
# Environment:
#   BERTH_APT_UPDATED   set: the lists of packages are new
#
# Installing a server must not start it: the platform brings up its own.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

missing=()
need() { # COMMAND PACKAGE...
  command -v "$1" >/dev/null 2>&1 || missing+=("${@:2}")
}
have_postgres() { command -v postgres >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }

need mmdebstrap mmdebstrap
if [ "${1:-}" != images ]; then
  need dockerd docker.io
  command -v valkey-server >/dev/null 2>&1 || need redis-server redis-server
  # Without a PostgreSQL the build takes one from npm into the binary; without npm Debian's is installed.
  have_postgres || command -v npm >/dev/null 2>&1 || missing+=(postgresql)
  need node nodejs # the console
  need npm npm
fi
if [ "${1:-}" = test ] || [ "${1:-}" = bench ]; then
  have_postgres || [[ " ${missing[*]:-} " == *" postgresql "* ]] || missing+=(postgresql)
  need etcd etcd-server
  need redis-server redis-server
  need gcc gcc libc6-dev # the race detector
  need mkfs.xfs xfsprogs # volumes with quotas of the file system
  [ -x /usr/sbin/slapd ] || need slapd slapd # a directory of users
  need musl-gcc musl-tools # a root file system with another C library
  # Stories of people who use apps: a browser with its driver, and what OpenSSH's users have.
  [ -n "${BERTH_CHROMIUM:-}" ] || need chromium-headless-shell chromium-headless-shell
  need ssh openssh-client
  need rsync rsync
  # The official client's stories want Python 3.11 with venv; python3 alone does for the others.
  need python3 python3
  { /usr/bin/python3.11 -c 'import venv, ensurepip' || python3.11 -c 'import venv, ensurepip'; } >/dev/null 2>&1 || missing+=(python3.11-venv)
fi
if [ "${1:-}" = quota ]; then # scripts/xfs-quota.sh
  need linux.uml user-mode-linux
  need mkfs.xfs xfsprogs
  need mkfs.ext4 e2fsprogs
  need modprobe kmod
  need iptables-legacy iptables
  need ip iproute2
fi
if [ "${1:-}" = qemu ]; then # scripts/xfs-quota.sh where user-mode Linux does not start
  need qemu-system-x86_64 qemu-system-x86
  need busybox busybox-static
fi
if [ "${1:-}" = bench ]; then
  need nginx nginx-light # downloads, reverse proxy
  need gdu gdu # counts of usage
  need wrk wrk
  [ -x /usr/sbin/sshd ] || need sshd openssh-server # copies over SSH
fi
[ ${#missing[@]} -gt 0 ] || exit 0

read -r -a missing <<<"$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')"
sudo=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { say "install-deps: missing ${missing[*]}; next: as root, apt-get install ${missing[*]}"; exit 1; }
  sudo=sudo
fi
command -v apt-get >/dev/null || { say "install-deps: this is no Debian; next: install ${missing[*]} by hand"; exit 1; }

say "install-deps: installing ${missing[*]} (usually 30 to 60 s)"
# Debian starts what it installs unless this file says no. An existing one is left alone.
guard=/usr/sbin/policy-rc.d
if [ ! -e "$guard" ]; then
  printf '#!/bin/sh\nexit 101\n' | $sudo tee "$guard" >/dev/null
  $sudo chmod +x "$guard"
  trap '$sudo rm -f "$guard"' EXIT
fi
# PostgreSQL's package makes a cluster of its own, which nobody needs.
if [[ " ${missing[*]} " == *" postgresql "* ]] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  $sudo mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' | $sudo tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
log=$(mktemp)
run() { if ! "$@" >"$log" 2>&1; then tail -n 25 "$log" >&2; say "install-deps: $* failed"; return 1; fi; }
install() { run $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}"; }
[ -n "${BERTH_APT_UPDATED:-}" ] || run $sudo apt-get update || { say "install-deps: trying once more"; run $sudo apt-get update; }
install || { say "install-deps: trying once more"; run $sudo apt-get update; install; }
# dockerd needs a firewall tool and certificates only where Debian's package recommends them.
[ "${1:-}" = images ] || command -v iptables >/dev/null 2>&1 || run $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends iptables
rm -f "$log"
