#!/bin/bash
# Runs the tests of XFS project quotas in user-mode Linux, for machines whose own kernel has no CONFIG_XFS_QUOTA
# (there `go test` skips them). The file system of this machine is its root, read-only; what the tests write is
# in memory.
#
#   scripts/xfs-quota.sh [arguments of go test]      for example -test.run Limit
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
need() { command -v "$1" >/dev/null || { say "xfs-quota: $1 is missing; next: apt-get install $2"; exit 1; }; }
need linux.uml user-mode-linux
need mkfs.xfs xfsprogs
need python3 python3

dir=$(mktemp -d /var/tmp/xfs-quota.XXXXXX)
trap 'rm -rf "$dir"' EXIT
go test -c -o "$dir/xfs.test" ./internal/storage/volume/xfs
printf '%q ' -test.v -test.timeout=10m "$@" >"$dir/args"
# The first process of that machine. Loop devices are a module there, and not everybody has insmod.
cat >"$dir/init" <<INIT
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o size=4G tmp /run
mkdir -m 1777 /run/tmp
python3 - /usr/lib/uml/modules/\$(uname -r)/kernel/drivers/block/loop.ko <<'LOAD'
import ctypes, os, sys
ctypes.CDLL(None).syscall(313, os.open(sys.argv[1], os.O_RDONLY), b"", 0)  # finit_module
LOAD
cd /run
eval "$dir/xfs.test \$(cat $dir/args)"
echo "xfs-quota: ended with \$?"
echo o >/proc/sysrq-trigger
sleep 60
INIT
chmod +x "$dir/init"
TMPDIR=/dev/shm timeout 900 linux.uml mem=4G root=/dev/root rootfstype=hostfs rootflags=/ ro init="$dir/init" \
  con=null con0=fd:0,fd:1 </dev/null >"$dir/log" 2>&1 || true
grep -aE '^ *(---|ok|PASS|FAIL|panic)|_test.go:|Error' "$dir/log" || true
grep -aq 'xfs-quota: ended with 0' "$dir/log" || { tail -n 20 "$dir/log" >&2; say "xfs-quota: the tests failed"; exit 1; }
