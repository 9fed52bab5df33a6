package runner

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A folder's quota is that of the project its files belong to, and the kernel lets the owner of a file change its project, or
// whether new files inherit it. In a session that would be a way out of the quota, so nothing in a container may ask for it.
// The filter adds to the engine's and is inherited by every process of the container, all of which are the runner's.

// fenced are the commands of ioctl that change a file's project or its inheritance; file_setattr, a call of newer kernels, does both.
var fenced = []uint32{
	0x401c5820, // FS_IOC_FSSETXATTR
	0x40086602, // FS_IOC_SETFLAGS
	0x40046602, // FS_IOC32_SETFLAGS
}

const fileSetattr = 469 // on all architectures

// ioctls are the numbers of ioctl by architecture, with those of programs of other word sizes.
var ioctls = []struct {
	arch  uint32
	calls []uint32
}{
	{unix.AUDIT_ARCH_X86_64, []uint32{16, 514}},
	{unix.AUDIT_ARCH_I386, []uint32{54}},
	{unix.AUDIT_ARCH_AARCH64, []uint32{29}},
	{unix.AUDIT_ARCH_ARM, []uint32{54}},
}

// ofX32 marks the calls of x32 programs, whose ioctl is 514; older kernels take their other numbers with it as well.
const ofX32 = 0x40000000

// The call of 32-bit x86 programs that makes sockets among others. Its arguments lie in memory, where the engine's filter cannot see the
// kind of socket: such programs make none.
const (
	socketcall       = 102
	socketcallSocket = 1
	socketcallPair   = 8
)

// The places of struct seccomp_data on little-endian machines.
const (
	dataCall = 0
	dataArch = 4
	dataArg0 = 16 // the lower half of the first argument, likewise
	dataArg1 = 24 // the lower half of the second argument: the kernel takes no more of a command
)

// fenceProgram allows everything but what is fenced, which fails with EPERM.
func fenceProgram() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// skipUnless goes on with the next instruction if the value is k, and n further otherwise.
	skipUnless := func(k uint32, n int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: uint8(n), K: k}
	}
	end := func(with uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: with}
	}
	const allow, deny = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	const noCall = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	command := []unix.SockFilter{load(dataArg1)}
	for _, c := range fenced {
		command = append(command, skipUnless(c, 1), end(deny))
	}
	command = append(command, end(allow))
	program := []unix.SockFilter{load(dataArch)}
	for _, a := range ioctls {
		plain := unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(ofX32)}
		block := []unix.SockFilter{load(dataCall), plain, skipUnless(fileSetattr, 1), end(deny)}
		for _, call := range a.calls {
			block = append(append(block, skipUnless(call, len(command))), command...)
		}
		if a.arch == unix.AUDIT_ARCH_I386 {
			block = append(block, skipUnless(socketcall, 6), load(dataArg0), skipUnless(socketcallSocket, 1), end(noCall),
				skipUnless(socketcallPair, 1), end(noCall), end(allow))
		}
		block = append(block, end(allow))
		program = append(append(program, skipUnless(a.arch, len(block))), block...)
	}
	return append(program, end(allow))
}

// fence keeps this process, all its threads and all that it starts from leaving their project.
func fence() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Filters are for those who gain no rights by starting programs; containers are such already.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	filter := fenceProgram()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	switch {
	case errno != 0:
		return fmt.Errorf("filter system calls: %w", errno)
	case thread != 0:
		return fmt.Errorf("filter system calls: thread %d has filters of its own", thread)
	}
	return nil
}
