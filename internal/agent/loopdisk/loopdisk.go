// Package loopdisk gives kernels file systems of bounded size: ext4 on sparse files of the agent's disk, attached through loop
// devices. Whoever writes into one finds "no space left on device" at its end, whatever the agent's disk still has.
//
// A disk is a directory with a file, image, and a mount point, mnt. The directory can be renamed while it is mounted: that is how
// disks which were made ahead (Pool) become those of kernels without any work in the way of a session's start.
package loopdisk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/diskspace"
)

const (
	imageName = "image"
	mountName = "mnt"
	// MinSize is the smallest disk that can be made.
	MinSize = 32 << 20
	// rootShare of a disk, in percent, is for root alone: the agent can write a user's files where that user has filled the disk.
	rootShare = "0.5"
	// journalMiB is the size of the journal. It has its space from the start: a file system whose journal cannot be written, because
	// the disk under it is full, takes no more writes at all.
	journalMiB = "4"
	// options: what is deleted leaves the agent's disk too, and nothing is written ahead of use.
	options = "discard,errors=remount-ro,noinit_itable"
)

// Mount is where a disk's files are.
func Mount(dir string) string { return filepath.Join(dir, mountName) }

// Make makes a disk of this size and attaches it. After an error nothing is left.
func Make(ctx context.Context, dir string, size int64) (err error) {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	defer func() {
		if err != nil {
			_ = Detach(dir)
			_ = os.RemoveAll(dir)
		}
	}()
	image := filepath.Join(dir, imageName)
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	mkfs := exec.CommandContext(ctx, mkfsPath(), "-q", "-F", "-b", "4096", "-m", rootShare, "-J", "size="+journalMiB,
		"-O", "^resize_inode", "-E", "lazy_itable_init=1,nodiscard", image)
	if out, err := mkfs.CombinedOutput(); err != nil {
		return fmt.Errorf("make a file system (mkfs.ext4): %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Mkdir(Mount(dir), 0o711); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	if err := Attach(dir); err != nil {
		return err
	}
	return os.Chmod(Mount(dir), 0o711)
}

// mkfsPath finds the program also where PATH lacks the directories of administrators.
func mkfsPath() string {
	const name = "mkfs.ext4"
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return name // its absence is the error of whoever runs it
}

// Exists reports whether there is a disk.
func Exists(dir string) bool {
	st, err := os.Lstat(filepath.Join(dir, imageName))
	return err == nil && st.Mode().IsRegular()
}

// Attach mounts a disk that is not mounted, as after a restart of the host.
func Attach(dir string) error {
	dev, err := attached(dir)
	if err != nil || dev >= 0 {
		return err
	}
	image, err := os.OpenFile(filepath.Join(dir, imageName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("attach a disk: %w", err)
	}
	defer image.Close()
	loop, name, err := device(image)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount holds the device; without one it goes with this
	if err := unix.Mount(name, Mount(dir), "ext4", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount a disk: %w", os.NewSyscallError("mount", err))
	}
	return nil
}

// maxTries bounds how often another process may take the loop device that was free.
const maxTries = 64

// device connects a file with a free loop device, which goes away when nobody has it open or mounted.
func device(image *os.File) (*os.File, string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, "", fmt.Errorf("find a loop device: %w", err)
	}
	defer control.Close()
	for range maxTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, "", fmt.Errorf("find a loop device: %w", os.NewSyscallError("ioctl", err))
		}
		name := "/dev/loop" + strconv.Itoa(n)
		loop, err := os.OpenFile(name, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			// Where nobody makes device files for the kernel, as in containers.
			if err := unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
				return nil, "", fmt.Errorf("make the device file %s: %w", name, os.NewSyscallError("mknod", err))
			}
			loop, err = os.OpenFile(name, os.O_RDWR, 0)
		}
		if err != nil {
			return nil, "", fmt.Errorf("open a loop device: %w", err)
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(image.Fd()), Size: 4096, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		})
		if err == nil {
			return loop, name, nil
		}
		_ = loop.Close() // it is somebody else's
		if !errors.Is(err, unix.EBUSY) {
			return nil, "", fmt.Errorf("connect %s: %w", name, os.NewSyscallError("ioctl", err))
		}
	}
	return nil, "", errors.New("connect a loop device: others took every one that was free")
}

const loopMajor = 7

// attached is the number of the loop device of a disk that is mounted, -1 when it is not mounted. It compares the device's file
// with the disk's own, so that it never takes another file system for the disk.
func attached(dir string) (int, error) {
	var mnt, img unix.Stat_t
	if err := unix.Lstat(Mount(dir), &mnt); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return -1, nil
		}
		return -1, fmt.Errorf("look at a disk: %w", os.NewSyscallError("lstat", err))
	}
	if err := unix.Lstat(filepath.Join(dir, imageName), &img); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return -1, nil
		}
		return -1, fmt.Errorf("look at a disk: %w", os.NewSyscallError("lstat", err))
	}
	if unix.Major(mnt.Dev) != loopMajor || mnt.Dev == img.Dev {
		return -1, nil
	}
	n := int(unix.Minor(mnt.Dev))
	loop, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDONLY, 0)
	if err != nil {
		return -1, fmt.Errorf("look at a disk: %w", err)
	}
	defer loop.Close()
	info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
	if err != nil {
		return -1, fmt.Errorf("look at a disk: %w", os.NewSyscallError("ioctl", err))
	}
	if info.Inode != img.Ino {
		return -1, nil
	}
	return n, nil
}

// usable tries whether a disk takes a new directory: one whose journal could not be written takes none.
func usable(dir string) error {
	if err := Attach(dir); err != nil {
		return err
	}
	probe := filepath.Join(Mount(dir), ".probe")
	if err := os.Mkdir(probe, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("try a disk: %w", err)
	}
	if err := os.Remove(probe); err != nil {
		return fmt.Errorf("try a disk: %w", err)
	}
	return nil
}

// Shutdown of an ext4 file system without writing what it has in memory.
const (
	ioctlShutdown = 0x8004587d
	noLogFlush    = 2
)

// Detach unmounts a disk whose files nobody needs any more: what is not on disk yet is dropped, so that it needs neither time nor
// space. A disk that is not mounted is no error.
func Detach(dir string) error {
	n, err := attached(dir)
	if err != nil || n < 0 {
		return err
	}
	if mnt, err := os.Open(Mount(dir)); err == nil {
		_ = unix.IoctlSetPointerInt(int(mnt.Fd()), ioctlShutdown, noLogFlush) // without it the unmount writes everything
		_ = mnt.Close()                                                       // nothing was written
	}
	return unmount(Mount(dir))
}

func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("unmount %s: %w", path, os.NewSyscallError("umount", err))
}

// Remove detaches and deletes a disk; an absent one is no error.
func Remove(dir string) error {
	if err := Detach(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove a disk: %w", err)
	}
	return nil
}

// Usage is how full a disk is; ok is false when it is not mounted.
func Usage(dir string) (u diskspace.Usage, ok bool) {
	if n, err := attached(dir); err != nil || n < 0 {
		return u, false
	}
	u, err := diskspace.Of(Mount(dir))
	return u, err == nil
}
