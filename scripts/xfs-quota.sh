#!/bin/bash
# Runs what needs XFS project quotas in a small machine of its own, for machines whose kernel has no CONFIG_XFS_QUOTA (there
# `go test` skips it): the tests of the driver, then the story of e2e with a container engine of its own.
#
#   scripts/xfs-quota.sh [--if-needed] [driver|story [argument of the test program...]]
#
# With --if-needed, as `make test` calls it, it ends well, after one line that says why, where this machine's own kernel
# has such quotas (all of it ran with the other tests), where the packages for it cannot be had, and where the machine
# does not start. A test that skips itself in there counts as failed.
#
# The machine is user-mode Linux, which is a process and has one core. Where that does not start it is QEMU with a kernel of
# Debian, which takes some four minutes longer. Neither needs KVM. Its root is this machine's, read-only; what is written there
# goes to a disk in a file that is deleted. It has no network. The image of sessions is taken from the container engine
# here, which is started for that where none runs.
#
# Environment:
#   BERTH_QUOTA_MACHINE   uml or qemu: this one alone
#   BERTH_QUOTA_SECONDS   what the machine may take, default 1800
#   BERTH_QUOTA_MEMORY    its MiB, default 3072
#   BERTH_LEFT_OUT        a file to which a line is added when the tests are left out
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'xfs-quota: %s\n' "$*" >&2; }
die() { say "$1"; [ -z "${2:-}" ] || printf '  next: %s\n' "$2" >&2; exit 1; }
optional=
# cannot REASON [NEXT]: a failure, unless it was to run only where it can.
cannot() {
  [ -n "$optional" ] || die "$@"
  say "the tests of XFS quotas are left out: $1"
  [ -z "${BERTH_LEFT_OUT:-}" ] || printf '  %s: %s\n' "what needs quotas of XFS (scripts/xfs-quota.sh)" "$1" >>"$BERTH_LEFT_OUT"
  exit 0
}

[ "${1:-}" != --if-needed ] || { optional=1; shift; }
what=${1:-all}
case $what in
  all) programs=(driver story) ;;
  driver | story) programs=("$what"); shift ;;
  *) die "unknown word '$what'" "run scripts/xfs-quota.sh [--if-needed] [driver|story [argument...]]" ;;
esac

# The file is there where XFS is loaded and has quotas.
own_quotas() { [ -d /proc/fs/xfs ] || modprobe -q xfs 2>/dev/null || true; [ -e /proc/fs/xfs/xqm ]; }
if [ -n "$optional" ] && own_quotas; then
  say "this kernel has quotas for XFS, so their tests ran with the others"
  exit 0
fi
machines=(uml qemu)
case ${BERTH_QUOTA_MACHINE:-} in
  '') ;;
  uml | qemu) machines=("$BERTH_QUOTA_MACHINE") ;;
  *) die "unknown machine '$BERTH_QUOTA_MACHINE'" "set BERTH_QUOTA_MACHINE to uml or qemu, or unset it" ;;
esac
[ "$(uname -m)" = x86_64 ] || cannot "the machines are for x86_64" "use a machine whose kernel has CONFIG_XFS_QUOTA"
scripts/install-deps.sh quota || cannot "packages cannot be installed" "read the messages above"
[ "$(id -u)" = 0 ] || cannot "a container engine in there takes root here" "sudo scripts/xfs-quota.sh"

began=$SECONDS
seconds=${BERTH_QUOTA_SECONDS:-1800} memory=${BERTH_QUOTA_MEMORY:-3072}
dir=$(mktemp -d /var/tmp/berth-quota.XXXXXX)
vm='' engine='' container=''
cleanup() {
  local code=$?
  trap - EXIT
  if [ -n "$vm" ]; then kill "$vm" 2>/dev/null || true; wait "$vm" || true; fi
  if [ -n "$container" ]; then docker rm "$container" >/dev/null || true; fi
  if [ -n "$engine" ]; then scripts/engine.sh stop || true; fi
  rm -rf "$dir"
  exit $code
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "building the tests"
export CGO_ENABLED=0
if [ "$what" != story ]; then go test -c -o "$dir/xfs.test" ./internal/storage/volume/xfs; fi
binary='' venv='' image='' layer=''
if [ "$what" != driver ]; then
  go test -c -o "$dir/e2e.test" ./e2e
  binary=$(realpath "${BERTH_BIN:-bin/berth}")
  [ -x "$binary" ] || die "$binary is missing" "make build"
  venv=$(scripts/official-client.sh)
  docker version >/dev/null 2>&1 || { scripts/engine.sh ensure; engine=1; }
  images/build.sh python
  image=$(sed -nE 's/^image +//p' images/python.recipe)
  docker image inspect --format '{{range $k, $v := .Config.Labels}}LABEL {{$k}}={{json $v}}{{"\n"}}{{end}}{{range .Config.Env}}ENV {{.}}{{"\n"}}{{end}}' "$image" >"$dir/changes"
  # Loading it there would take minutes; it is mounted where the engine there keeps its one layer.
  layer=$(docker image inspect --format '{{if .GraphDriver.Data}}{{if not .GraphDriver.Data.LowerDir}}{{.GraphDriver.Data.UpperDir}}{{end}}{{end}}' "$image")
  if [ ! -d "$layer" ]; then
    layer=$dir/layer
    mkdir "$layer"
    container=$(docker create "$image" true)
    docker export "$container" | tar -xC "$layer"
  fi
fi

# The first program there: this machine's root below, a disk above. MODULES DISK
prepare() {
cat >"$dir/first" <<FIRST
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
insmod "$1/\$(uname -r)/kernel/fs/overlayfs/overlay.ko" 2>/dev/null # perhaps it is there already
root=/mnt/root
mount -n -t ext4 -o noatime /dev/$2 /mnt && mkdir /mnt/{above,work,tmp,docker,root} &&
  mount -n -t overlay -o lowerdir=/,upperdir=/mnt/above,workdir=/mnt/work root \$root || echo "xfs-quota: cannot mount the root"
mount -n -t proc proc \$root/proc
mount -n -t sysfs sys \$root/sys
mount -n -t devtmpfs dev \$root/dev
mount -n -t tmpfs run \$root/run
mkdir -p \$root/run/{tmp,bin,layer} \$root/dev/{pts,shm} \$root/var/lib/docker \$root/lib/modules
mount -n -t devpts -o mode=620,ptmxmode=666 pts \$root/dev/pts
mount -n -t tmpfs shm \$root/dev/shm
mount -n -t cgroup2 cgroup \$root/sys/fs/cgroup
mount -n --bind $1 \$root/lib/modules
mount -n --bind /mnt/tmp \$root/run/tmp
mount -n --bind /mnt/docker \$root/var/lib/docker
[ -z "$layer" ] || mount -n --bind "$layer" \$root/run/layer
exec chroot \$root /bin/bash "$dir/inside"
FIRST
chmod +x "$dir/first"
}

cat >"$dir/inside" <<INSIDE
#!/bin/bash
# The rest of it. The kernel of user-mode Linux has no tables of nftables for addresses, but those of iptables.
for name in iptables ip6tables; do ln -s "/usr/sbin/\$name-legacy" "/run/bin/\$name"; done
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$(printf %q "$HOME") TMPDIR=/run/tmp
export BERTH_TEST_ENGINE=1 BERTH_ENGINE_DIR=/run/engine BERTH_BIN=$(printf %q "$binary") BERTH_OFFICIAL_VENV=$(printf %q "$venv")
driver() {
  cd internal/storage/volume/xfs
  "$dir/xfs.test" -test.v -test.timeout=$((seconds - 60))s $(printf '%q ' "$@")
}
story() {
  scripts/engine.sh ensure
  local changes=() line
  while read -r line; do changes+=(--change "\$line"); done <"$dir/changes"
  tar -cT /dev/null | docker import "\${changes[@]}" - $image >/dev/null
  mount --bind /run/layer "\$(docker image inspect --format '{{.GraphDriver.Data.UpperDir}}' $image)"
  cd e2e
  "$dir/e2e.test" -test.v -test.timeout=$((seconds - 60))s -test.run='^TestQuota' $(printf '%q ' "$@")
}
run() {
  set -e
  chmod 1777 /run/tmp /dev/shm
  modprobe loop
  hostname xfs-quota
  ip link set lo up
  cd $(printf %q "$PWD")
  for program in ${programs[*]}; do (set -e; \$program); done
}
echo "xfs-quota: began"
(run) 2>&1
echo "xfs-quota: ended with \$?"
sync
echo o >/proc/sysrq-trigger
sleep 60
INSIDE

# boot COMMAND...: the machine, with its console shown, until it ends. It fails when nothing of ours began there.
boot() {
  rm -f "$dir/disk"
  : >"$dir/console"
  truncate -s 16G "$dir/disk" && mkfs.ext4 -q -F -O ^has_journal -E lazy_itable_init=1 "$dir/disk" || return
  "$@" </dev/null >>"$dir/console" 2>&1 &
  vm=$!
  tail -n +1 -f --pid="$vm" "$dir/console" | sed -u 's/\r$//' &
  local shown=$!
  code=0
  wait "$vm" || code=$?
  vm=
  wait "$shown" || true
  grep -aq '^xfs-quota: began' "$dir/console"
}

uml() {
  prepare /usr/lib/uml/modules ubda
  # Its memory is a file. It switches between processes all the time, which costs less on one core.
  local scratch=/dev/shm core=()
  [ "$(df --output=avail -m $scratch 2>/dev/null | tail -n 1)" -gt $((memory + 256)) ] 2>/dev/null || scratch=$dir
  if taskset -c 0 true 2>/dev/null; then core=(taskset -c 0); fi
  boot timeout -k 10 "$seconds" env "TMPDIR=$scratch" "${core[@]}" linux.uml "mem=${memory}M" "ubd0=$dir/disk" root=/dev/root \
    rootfstype=hostfs rootflags=/ ro "init=$dir/first" con=null con0=fd:0,fd:1 quiet loglevel=3 panic=1
}

qemu() {
  local kernel
  scripts/install-deps.sh qemu && kernel=$(scripts/qemu-kernel.sh) || return
  prepare "$kernel/lib/modules" vda
  boot timeout -k 10 "$seconds" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -serial stdio \
    -machine q35 -accel tcg,thread=multi -cpu Nehalem,+rdrand,+aes,+pclmulqdq -smp 2 -m "$memory" \
    -kernel "$kernel/vmlinuz" -initrd "$kernel/initrd" \
    -drive "file=$dir/disk,format=raw,if=virtio,cache=unsafe" \
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -append "console=ttyS0 quiet loglevel=3 panic=1 first=$dir/first"
}

began_in=
for machine in "${machines[@]}"; do
  say "starting the machine ($machine)"
  if "$machine"; then began_in=$machine; break; fi
  say "$machine does not start here, look at its last lines above"
done
[ -n "$began_in" ] || cannot "neither of ${machines[*]} starts here" "look at their last lines above"
case $code in 124 | 137) die "the machine did not end within $seconds s" "look at its last lines, or set BERTH_QUOTA_SECONDS" ;; esac
grep -aq '^xfs-quota: ended with 0' "$dir/console" || die "the tests failed, or the machine did"
if grep -aq '^ *--- SKIP' "$dir/console"; then die "a test left itself out"; fi
say "all passed in $((SECONDS - began)) s ($began_in)"
