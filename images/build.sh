#!/bin/bash
# Builds Berth's base images from Debian packages and imports them into the container engine.
#
#   images/build.sh [--force] [RECIPE...]      when none is named, all recipes beside this file without a line "extra"
#
# An image whose recipe has not changed since it was built is left alone (--force rebuilds).
# Needs: mmdebstrap, tar, the docker command line and access to an engine. Runs as root, or
# as a user with unprivileged user namespaces.
#
# Environment:
#   BERTH_DEBIAN_MIRROR   package mirror, default http://deb.debian.org/debian
#   BERTH_IMAGE_JOBS      images built at a time, default 3
#   BERTH_ENGINE_WAIT     seconds that an image waits, when it is ready for import, for an engine that is being installed; default 0
#   DOCKER                engine command, default docker
#
# A recipe is lines of "KEY VALUE": image (reference), suite (Debian release), package
# (names, repeatable), remove (path or glob below the root), link (PATH TARGET), file (PATH
# TEXT, one line), go (PATH PACKAGE: a program of this repository, built without cgo), env (K=V),
# label (NAME VALUE), extra (yes: built only when it is named). "#" starts a comment line.
set -euo pipefail
cd "$(dirname "$0")"

docker=${DOCKER:-docker}
mirror=${BERTH_DEBIAN_MIRROR:-http://deb.debian.org/debian}
jobs=${BERTH_IMAGE_JOBS:-3}
force=
recipes=()
# Times inside the images: fixed, so that equal packages give equal files.
export SOURCE_DATE_EPOCH=1767225600

say() { printf '%s\n' "$*" >&2; }
die() { say "images: $1"; [ -z "${2:-}" ] || say "  next: $2"; exit 1; }

for arg; do
  case $arg in
    --force) force=1 ;;
    -*) die "unknown option $arg" "run images/build.sh [--force] [RECIPE...]" ;;
    *) recipes+=("${arg%.recipe}") ;;
  esac
done
if [ ${#recipes[@]} -eq 0 ]; then
  for f in *.recipe; do grep -q '^extra ' "$f" || recipes+=("${f%.recipe}"); done
fi
for r in "${recipes[@]}"; do
  [ -f "$r.recipe" ] || die "there is no recipe $r" "choose one of: $(ls -- *.recipe | sed 's/\.recipe$//' | tr '\n' ' ')"
done

# engine returns when the container engine answers.
engine() {
  local end=$((SECONDS + ${BERTH_ENGINE_WAIT:-0}))
  until "$docker" version >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || die "the container engine does not answer" "apt-get install docker.io; scripts/engine.sh ensure"
    sleep 1
  done
}
[ -n "${BERTH_ENGINE_WAIT:-}" ] || engine

work=$(mktemp -d "${TMPDIR:-/tmp}/berth-images.XXXXXX")
chmod 0711 "$work" # a user's namespace reads in it with another user number
pids=()
cleanup() {
  for p in "${pids[@]:-}"; do [ -z "$p" ] || kill "$p" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# fields RECIPE KEY prints the values of every line with that key.
fields() { sed -nE "s/^$2[[:space:]]+(.*[^[:space:]])[[:space:]]*$/\1/p" "$1.recipe"; }

# Raise this when a change of this script changes what it builds.
edition=1

# Programs count by their own sources and the versions of what they use.
recipe_hash() {
  local path package
  {
    echo "$edition"
    cat "$1.recipe"
    while read -r path package; do
      [ -z "$package" ] || { cat ../go.mod; find "../$package" -type f ! -name '*_test.go' -print0 | sort -z | xargs -0 sha256sum; }
    done < <(fields "$1" go)
  } | sha256sum | cut -c1-32
}

# mmdebstrap's options and sources for all images of a suite.
debian() { # SUITE OPTION... OUT
  local suite=$1 out=${*: -1} keep
  local args=(--quiet "--mode=$([ "$(id -u)" = 0 ] && echo root || echo unshare)")
  for keep in man info locale lintian doc-base bug; do
    args+=("--dpkgopt=path-exclude=/usr/share/$keep/*")
  done
  # Licences stay; the rest of the documentation does not.
  args+=("--dpkgopt=path-exclude=/usr/share/doc/*" "--dpkgopt=path-include=/usr/share/doc/*/copyright")
  args+=('--aptopt=Acquire::Languages "none"' '--aptopt=APT::Install-Recommends "false"')
  mmdebstrap "${args[@]}" "${@:2:$#-2}" "$suite" "$out" \
    "deb $mirror $suite main" "deb $mirror $suite-updates main" "deb $mirror-security $suite-security main"
}

# root packs what all images of a suite begin with, once: the essential packages, apt and its lists. That is most of the work of a small
# image, and no image has a layer more for it.
root() { # SUITE
  say "images: preparing $1 (usually 15 s) ..."
  if ! debian "$1" --variant=apt --skip=cleanup/apt "$work/$1.root.tar" 2>"$work/$1.log"; then
    tail -n 20 "$work/$1.log" >&2
    die "preparing $1 failed" "check that $mirror answers, or set BERTH_DEBIAN_MIRROR"
  fi
}

build() {
  local r=$1 image suite hash packages=() begun=$SECONDS
  image=$(fields "$r" image) suite=$(fields "$r" suite) hash=$(recipe_hash "$r")
  read -r -a packages <<<"$(fields "$r" package | tr -s '[:space:]' ' ')"
  say "images: building $image (usually 5 to 40 s) ..."

  local args=(--variant=custom --skip=update,download) # "custom" installs nothing of its own
  args+=("--setup-hook=tar -C \"\$1\" --exclude='./dev/*' -xf $(printf %q "$work/$suite.root.tar")")

  # The customize hook is a script of its own, so that no recipe text is parsed by a shell twice.
  local hook="$work/$r.hook" path target programs=0
  {
    printf '#!/bin/sh\nset -e\n'
    # Packages are installed by apt from outside, as mmdebstrap itself does in variants that are not custom.
    if [ ${#packages[@]} -gt 0 ]; then
      printf 'DEBIAN_FRONTEND=noninteractive APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get --yes -o Dpkg::Use-Pty=false -o Dir::Bin::dpkg=env'
      printf ' -o DPkg::Options::=--unset=TMPDIR -o DPkg::Options::=dpkg -o DPkg::Chroot-Directory="$1" install'
      printf ' %q' "${packages[@]}"
      printf '\n'
    fi
    printf 'cd "$1"\n'
    while read -r path; do
      [ -n "$path" ] && printf 'rm -rf -- ./%s\n' "$path"
    done < <(fields "$r" remove)
    while read -r path target; do
      [ -n "$path" ] && printf 'ln -sfn %q ./%q\n' "$target" "$path"
    done < <(fields "$r" link)
    while read -r path target; do
      [ -n "$path" ] && printf 'mkdir -p "$(dirname ./%q)" && printf "%%s\\n" %q > ./%q\n' "$path" "$target" "$path"
    done < <(fields "$r" file)
    while read -r path target; do
      [ -n "$path" ] || continue
      programs=$((programs + 1))
      (cd .. && CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$work/$r.$programs" "./$target") || die "building $target failed" "go build ./$target"
      printf 'install -D -m 0755 %q ./%q\n' "$work/$r.$programs" "$path"
    done < <(fields "$r" go)
    printf 'rm -rf -- ./var/cache/debconf/*-old ./var/cache/ldconfig/aux-cache ./var/log/* ./root/.cache ./etc/machine-id ./etc/hostname ./etc/resolv.conf\n'
    printf ': > ./etc/machine-id\n'
  } >"$hook"
  chmod 0755 "$hook"
  args+=("--customize-hook=$hook \"\$1\"")

  if ! debian "$suite" "${args[@]}" "$work/$r.tar" >"$work/$r.log" 2>&1; then
    tail -n 20 "$work/$r.log" >&2
    die "building $image failed" "check that $mirror answers, or set BERTH_DEBIAN_MIRROR"
  fi

  local changes=() line name value
  while read -r name value; do
    [ -n "$name" ] && changes+=(--change "LABEL $name=\"$value\"")
  done < <(fields "$r" label)
  while read -r line; do
    [ -n "$line" ] && changes+=(--change "ENV $line")
  done < <(fields "$r" env)
  changes+=(--change "LABEL dev.berth.recipe=\"$hash\"" --change 'CMD ["/bin/bash"]')
  changes+=(--change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin')
  engine
  local old
  old=$("$docker" image inspect --format '{{.Id}}' "$image" 2>/dev/null || true)
  "$docker" import --message "berth $r recipe" "${changes[@]}" "$work/$r.tar" "$image" >/dev/null
  rm -f "$work/$r.tar"
  # The image that had this name goes, unless a container still needs it.
  [ -z "$old" ] || "$docker" rmi "$old" >/dev/null 2>&1 || true
  say "images: $image is ready ($((SECONDS - begun)) s)"
}

todo=()
for r in "${recipes[@]}"; do
  image=$(fields "$r" image)
  [ -n "$image" ] || die "images/$r.recipe names no image" "add a line: image NAME:TAG"
  have=$("$docker" image inspect --format '{{ index .Config.Labels "dev.berth.recipe" }}' "$image" 2>/dev/null || true)
  if [ -z "$force" ] && [ "$have" = "$(recipe_hash "$r")" ]; then
    say "images: $image is up to date"
  else
    todo+=("$r")
  fi
done
[ ${#todo[@]} -gt 0 ] || exit 0
command -v mmdebstrap >/dev/null || die "the command mmdebstrap is missing" "apt-get install mmdebstrap"

failed=0
suites=()
for r in "${todo[@]}"; do
  suite=$(fields "$r" suite)
  [[ " ${suites[*]:-} " == *" $suite "* ]] || suites+=("$suite")
done
for suite in "${suites[@]}"; do root "$suite"; done
for r in "${todo[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
    wait -n || failed=1
  done
  ( trap - EXIT; build "$r" ) &
  pids+=($!)
done
for p in "${pids[@]}"; do wait "$p" || failed=1; done
pids=()
[ $failed = 0 ] || die "not every image was built" "read the messages above and run images/build.sh again"
