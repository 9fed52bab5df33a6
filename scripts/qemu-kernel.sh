#!/bin/bash
# Gets a kernel of Debian that QEMU boots from a directory of this machine, and prints the directory that has it:
#
#   vmlinuz, initrd     the kernel, and the file system that it starts with
#   lib/modules         its modules
#
# The initrd mounts what QEMU exports with the tag "root" (9p, read-only) and runs the program there that the parameter "first" of the
# kernel names. Nothing is installed: packages are unpacked into the cache, and what is there is not made again.
set -euo pipefail

say() { printf 'qemu-kernel: %s\n' "$*" >&2; }
die() { say "$1"; exit 1; }

cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
meta=linux-image-amd64
package=$(apt-cache depends "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
[ -n "$package" ] || die "apt knows no package $meta; apt-get update"
kernel=$cache/qemu-$package
if [ -e "$kernel/complete" ]; then
  echo "$kernel"
  exit 0
fi
mkdir -p "$cache"
exec 9>"$kernel.lock"
flock 9
rm -rf "$kernel" && mkdir "$kernel"
find "$cache" -maxdepth 1 -type d -name 'qemu-linux-image-*' ! -path "$kernel" -exec rm -rf {} + # earlier ones
say "unpacking $package (70 MB to load, 176 MB unpacked)"
download() { (cd "$kernel" && apt-get download -qq -o APT::Sandbox::User=root "$package") >&2; }
download || { apt-get update -qq >&2 && download; } || die "$package cannot be loaded"
parts=(./boot/vmlinuz-\* ./lib/modules/\*/{modules.\*,kernel/{fs,net,lib,crypto,arch,drivers/{block,net,virtio}}})
(cd "$kernel" && dpkg-deb --fsys-tarfile ./*.deb | tar -x --wildcards "${parts[@]}" &&
  rm ./*.deb && mv boot/vmlinuz-* vmlinuz && rmdir boot) >&2
release=$(ls "$kernel/lib/modules")
depmod -b "$kernel" "$release"

first=$kernel/first
mkdir -p "$first"/{bin,proc,dev,root,modules}
cp "$(command -v busybox)" "$first/bin/busybox"
for module in virtio_pci virtio_blk 9pnet_virtio 9p ext4 overlay; do
  modprobe -d "$kernel" -S "$release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r module; do
  cp "$module" "$first/modules/"
  basename "$module" >>"$first/modules/order"
done
cat >"$first/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod "/modules/$module"; done </modules/order
/bin/busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose root /root
/bin/busybox mount -o move /dev /root/dev
/bin/busybox umount /proc
exec /bin/busybox switch_root /root "$first"
INIT
chmod +x "$first/init"
(cd "$first" && find . | busybox cpio -o -H newc | gzip -1) >"$kernel/initrd" 2>/dev/null
rm -rf "$first"
: >"$kernel/complete"
echo "$kernel"
