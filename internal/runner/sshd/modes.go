package sshd

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// The terminal modes of RFC 4254 8 that Linux has: what the client's own terminal is set to, so that its keys mean the same here.
var (
	modeChars = map[byte]int{
		1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL, 5: unix.VEOF, 6: unix.VEOL, 7: unix.VEOL2, 8: unix.VSTART, 9: unix.VSTOP,
		10: unix.VSUSP, 12: unix.VREPRINT, 13: unix.VWERASE, 14: unix.VLNEXT, 18: unix.VDISCARD,
	}
	modeInput = map[byte]uint32{
		30: unix.IGNPAR, 31: unix.PARMRK, 32: unix.INPCK, 33: unix.ISTRIP, 34: unix.INLCR, 35: unix.IGNCR, 36: unix.ICRNL, 37: unix.IUCLC,
		38: unix.IXON, 39: unix.IXANY, 40: unix.IXOFF, 41: unix.IMAXBEL, 42: unix.IUTF8,
	}
	modeLocal = map[byte]uint32{
		50: unix.ISIG, 51: unix.ICANON, 52: unix.XCASE, 53: unix.ECHO, 54: unix.ECHOE, 55: unix.ECHOK, 56: unix.ECHONL, 57: unix.NOFLSH,
		58: unix.TOSTOP, 59: unix.IEXTEN, 60: unix.ECHOCTL, 61: unix.ECHOKE, 62: unix.PENDIN,
	}
	modeOutput = map[byte]uint32{70: unix.OPOST, 71: unix.OLCUC, 72: unix.ONLCR, 73: unix.OCRNL, 74: unix.ONOCR, 75: unix.ONLRET}
)

// setModes sets a terminal as an encoded list of modes says; what cannot be understood leaves the defaults.
func setModes(tty *os.File, modes string) {
	rc, err := tty.SyscallConn()
	if err != nil || modes == "" {
		return
	}
	_ = rc.Control(func(fd uintptr) { // the defaults are good enough
		if t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
			applyModes(t, []byte(modes))
			_ = unix.IoctlSetTermios(int(fd), unix.TCSETS, t)
		}
	})
}

func applyModes(t *unix.Termios, modes []byte) {
	for ; len(modes) >= 5 && modes[0] != 0 && modes[0] < 160; modes = modes[5:] {
		code, value := modes[0], binary.BigEndian.Uint32(modes[1:])
		if i, ok := modeChars[code]; ok {
			if value == 255 { // switched off; Linux has another number for that
				value = 0
			}
			t.Cc[i] = byte(value)
			continue
		}
		for _, set := range []struct {
			bits  map[byte]uint32
			flags *uint32
		}{{modeInput, &t.Iflag}, {modeLocal, &t.Lflag}, {modeOutput, &t.Oflag}} {
			if bit, ok := set.bits[code]; ok {
				*set.flags &^= bit
				if value != 0 {
					*set.flags |= bit
				}
			}
		}
	}
}
