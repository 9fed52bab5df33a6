package proc

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

type winsize struct{ rows, cols, x, y uint16 }

// OpenPTY makes a terminal: the controlling side and the process's side. The latter
// belongs to the file-system user of the calling thread (see AsUser).
func OpenPTY(rows, cols uint16) (master, slave *os.File, err error) {
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	var unlock int32
	if err := ioctl(fd, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock))); err != nil {
		syscall.Close(fd)
		return nil, nil, fmt.Errorf("unlock a terminal: %w", err)
	}
	sfd, err := openPeer(fd)
	if err != nil {
		syscall.Close(fd)
		return nil, nil, err
	}
	master, slave = os.NewFile(uintptr(fd), "ptmx"), os.NewFile(uintptr(sfd), "pts")
	if rows > 0 && cols > 0 {
		if err := SetSize(master, rows, cols); err != nil {
			master.Close()
			slave.Close()
			return nil, nil, err
		}
	}
	return master, slave, nil
}

// SetSize tells a terminal how large its window is.
func SetSize(master *os.File, rows, cols uint16) error {
	ws := winsize{rows: rows, cols: cols}
	return control(master, syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&ws)))
}

// DropInput throws away what was written to a terminal's controlling side and no process has read.
func DropInput(master *os.File) error {
	const tcflsh, tciflush, tcoflush = 0x540b, 0, 1
	if err := control(master, tcflsh, tcoflush); err != nil { // what is on its way to the other side,
		return err
	}
	rc, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	if err := rc.Control(func(fd uintptr) { // and what is there
		peer, err := openPeer(int(fd))
		if err != nil {
			ierr = err
			return
		}
		defer syscall.Close(peer)
		ierr = ioctl(peer, tcflsh, tciflush)
	}); err != nil {
		return err
	}
	return ierr
}

// openPeer opens a terminal's other side without needing /dev/pts to be where it usually is.
func openPeer(master int) (int, error) {
	const tiocgptpeer = 0x5441
	fd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), tiocgptpeer, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC)
	if errno != 0 {
		return -1, fmt.Errorf("open the other side of a terminal: %w", errno)
	}
	return int(fd), nil
}

func control(f *os.File, req, arg uintptr) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	if err := rc.Control(func(fd uintptr) { ierr = ioctl(int(fd), req, arg) }); err != nil {
		return err
	}
	return ierr
}

func ioctl(fd int, req, arg uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), req, arg); errno != 0 {
		return errno
	}
	return nil
}
