package xfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	xflags, extsize, nextents, projid, cowextsize uint32
	_                                             [8]byte
}

const (
	fsGetXattr  = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr  = 0x401c5820 // FS_IOC_FSSETXATTR
	projInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

func control(f *os.File, fn func(fd uintptr) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if e := conn.Control(func(fd uintptr) { err = fn(fd) }); e != nil {
		return e
	}
	return err
}

func (x *fsxattr) ioctl(f *os.File, request uintptr) error {
	return control(f, func(fd uintptr) error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(x))); e != 0 {
			return e
		}
		return nil
	})
}

func readAttr(f *os.File) (x fsxattr, err error) {
	err = x.ioctl(f, fsGetXattr)
	return x, err
}

// tag puts a file into a project. Directories hand it on to what is made in them.
func tag(f *os.File, project uint32, directory bool) error {
	x, err := readAttr(f)
	if err != nil {
		return err
	}
	if x.projid == project && (!directory || x.xflags&projInherit != 0) {
		return nil
	}
	x.projid = project
	if directory {
		x.xflags |= projInherit
	}
	return x.ioctl(f, fsSetXattr)
}

// diskQuota is struct fs_disk_quota of linux/dqblk_xfs.h; it counts in blocks of 512 bytes.
type diskQuota struct {
	version, flags               int8
	fieldmask                    uint16
	id                           uint32
	blkHard, blkSoft             uint64
	inoHard, inoSoft             uint64
	bcount, icount               uint64
	itimer, btimer               int32
	iwarns, bwarns               uint16
	itimerHi, btimerHi, rtbHi, _ int8
	rtbHard, rtbSoft, rtbCount   uint64
	rtbTimer                     int32
	rtbWarns                     uint16
	_                            int16
	_                            [8]byte
}

// quotaState is struct fs_quota_statv, of which the flags are read.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       [252]byte // more than the kernel writes
}

const (
	basicBlock   = 512
	getQuota     = ('X'<<8 + 3) << 8 // Q_XGETQUOTA, before the type
	setLimit     = ('X'<<8 + 4) << 8 // Q_XSETQLIM
	getState     = ('X'<<8 + 8) << 8 // Q_XGETQSTATV
	ofProject    = 2                 // PRJQUOTA
	enforced     = 1 << 5            // FS_QUOTA_PDQ_ENFD
	hardAndSoft  = 1<<2 | 1<<3       // FS_DQ_BSOFT, FS_DQ_BHARD
	quotaVersion = 1
	projectFlag  = 2 // FS_PROJ_QUOTA
)

// quotactl asks the file system that the open file f is on. Kernels before 5.14 want its block device.
func quotactl(f *os.File, command uintptr, id uint32, arg unsafe.Pointer) error {
	return control(f, func(fd uintptr) error {
		_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, fd, command|ofProject, uintptr(id), uintptr(arg), 0, 0)
		if e == unix.ENOSYS {
			device, err := deviceOf(int(fd))
			if err != nil {
				return err
			}
			name, err := syscall.BytePtrFromString(device)
			if err != nil {
				return err
			}
			_, _, e = unix.Syscall6(unix.SYS_QUOTACTL, command|ofProject, uintptr(unsafe.Pointer(name)), uintptr(id), uintptr(arg), 0, 0)
		}
		if e != 0 {
			return e
		}
		return nil
	})
}

// deviceOf is the block device of the file system that fd is on, as /proc/self/mountinfo names it.
func deviceOf(fd int) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	want := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// id parent major:minor root point options [optional...] - type source options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if ok && len(fields) > 2 && fields[2] == want && len(source) > 1 {
			return source[1], nil
		}
	}
	return "", errors.Join(lines.Err(), fmt.Errorf("no mount of device %s is listed", want))
}

// quotaOf is what holds for a project; one that never was has no limit and nothing.
func quotaOf(f *os.File, project uint32) (q diskQuota, err error) {
	err = quotactl(f, getQuota, project, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) {
		return diskQuota{id: project}, nil
	}
	return q, err
}

// limitProject sets a hard limit, 0 for none.
func limitProject(f *os.File, project uint32, blocks uint64) error {
	q := diskQuota{version: quotaVersion, flags: projectFlag, fieldmask: hardAndSoft, id: project, blkHard: blocks}
	return quotactl(f, setLimit, project, unsafe.Pointer(&q))
}

// enforces tells whether the file system holds to the limits of projects.
func enforces(f *os.File) (bool, error) {
	s := quotaState{version: quotaVersion}
	err := quotactl(f, getState, 0, unsafe.Pointer(&s))
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return false, nil // quotas are off
	}
	return s.flags&enforced != 0, err
}
