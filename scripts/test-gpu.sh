#!/bin/bash
# Tests the helper for NVIDIA GPUs and says what it ran:
#   1. the tests of its packages, with cgo, against NVIDIA's own mock and a library in C that stands for NVIDIA's;
#   2. the built program as the agent starts it, on this machine; without a driver it has to say so in words;
#   3. where this machine has a driver: that it finds the GPUs that nvidia-smi lists, and measures them.
#
#   scripts/test-gpu.sh [--if-possible]
#
# With --if-possible, as `make test` calls it, it ends well where there is no C compiler. What this machine has not is left out by name.
#
# Environment:
#   BERTH_LEFT_OUT   a file to which a line is added for what is left out
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'test-gpu: %s\n' "$*" >&2; }
left_out() { # WHAT WHY
  say "left out: $1: $2"
  [ -z "${BERTH_LEFT_OUT:-}" ] || printf '  %s: %s\n' "$1 (scripts/test-gpu.sh)" "$2" >>"$BERTH_LEFT_OUT"
}

case ${1:-} in
  '' | --if-possible) ;;
  *) say "unknown word '$1'; next: run scripts/test-gpu.sh [--if-possible]"; exit 1 ;;
esac
if ! command -v "${CC:-gcc}" >/dev/null; then
  [ -n "${1:-}" ] || { say "there is no C compiler; next: apt-get install gcc libc6-dev"; exit 1; }
  left_out "the helper for NVIDIA GPUs" "there is no C compiler"
  exit 0
fi

say "the packages of the helper, with cgo"
export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g -Wno-deprecated-declarations}"
CGO_ENABLED=1 go test -count 1 -timeout 20m -ldflags '-extldflags=-Wl,-z,lazy' ./internal/nvmlhelper ./internal/agent/device/cuda/...

say "the built helper on this machine"
make --no-print-directory nvml
BERTH_NVML=$PWD/bin/berth-nvml go test -count 1 -timeout 20m -v -run '^TestTheBuiltHelper$' ./internal/agent/device/cuda/nvmlclient

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  left_out "the GPUs of this machine" "nvidia-smi lists none, there is no NVIDIA driver"
  exit 0
fi
say "the GPUs of this machine"
want=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | sort)
facts=$(bin/berth-nvml look) sample=$(bin/berth-nvml sample)
got=$(grep -o '"uuid": "GPU-[^"]*"' <<<"$facts" | cut -d'"' -f4 | sort)
measured=$(grep -o '"uuid": "GPU-[^"]*"' <<<"$sample" | cut -d'"' -f4 | sort)
[ "$got" = "$want" ] || { say "the helper found other GPUs than nvidia-smi:"; diff <(echo "$want") <(echo "$got") >&2 || true; exit 1; }
[ "$measured" = "$want" ] || { say "the helper measured other GPUs than nvidia-smi lists"; exit 1; }
if grep -q '"problem' <<<"$facts"; then
  say "a GPU of this machine has a problem, as the helper sees it:"
  grep '"problem' <<<"$facts" >&2
fi
say "the helper found and measured $(wc -l <<<"$want") GPUs"
