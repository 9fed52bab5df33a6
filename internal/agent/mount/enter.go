package mount

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
)

// maxEntrants bounds the threads that enter the mount namespaces of containers.
const maxEntrants = 4

// visit is a call in the mount namespace of a container.
type visit struct {
	ns   *os.File
	call func() error
	done chan error
}

// entrants hands visits to threads that do nothing else. They are started when they are needed and never end: the end of a thread would
// kill the children that were started on it with a death signal, such as the database of an all-in-one process.
var entrants = make(chan chan visit, maxEntrants)

func init() {
	for range maxEntrants {
		entrants <- nil // not started yet
	}
}

// inNamespace calls a function in the mount namespace of a process, on a thread apart.
func inNamespace(pid int, call func() error) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	e := <-entrants
	if e == nil {
		e = make(chan visit)
		ready := make(chan error)
		go entrant(e, ready)
		if err := <-ready; err != nil {
			entrants <- nil
			return err
		}
	}
	v := visit{ns: ns, call: call, done: make(chan error, 1)}
	e <- v
	err = <-v.done
	if fault.ReasonOf(err) == reasonStranded {
		e = nil // that thread is of no more use
	}
	entrants <- e
	return err
}

// reasonStranded: a thread could not come back.
const reasonStranded = "namespace-stranded"

func entrant(visits <-chan visit, ready chan<- error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err == nil {
		err = os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_FS)) // other threads keep their root and directory
	}
	ready <- err
	if err != nil {
		runtime.UnlockOSThread() // it is as it was
		return
	}
	for err == nil {
		v := <-visits
		out := os.NewSyscallError("setns", unix.Setns(int(v.ns.Fd()), unix.CLONE_NEWNS))
		if out == nil {
			out = v.call()
			if err = unix.Setns(int(home.Fd()), unix.CLONE_NEWNS); err != nil {
				out = fault.New(fault.Internal, "a thread cannot leave the name space of a container").WithReason(reasonStranded).WithCause(err)
			}
		}
		v.done <- out
	}
	select {} // see entrants
}
