package platform

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
)

// StateDir is the directory of one cluster. Everything `berth up` knows is below it.
type StateDir string

// FindStateDir resolves the flag, $BERTH_STATE_DIR and the default of this user, in this order.
func FindStateDir(flag string) (StateDir, error) {
	dir := flag
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = ""
		}
		dir = api.Lookup{Root: os.Geteuid() == 0, Home: home}.DefaultStateDir()
	}
	if dir == "" {
		return "", fault.Invalidf("no state directory is known for this user").WithNext("name one: --state-dir DIR")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find state directory: %w", err)
	}
	// A cluster of somebody else must not look like none.
	f, err := os.Open(filepath.Join(abs, lockFile))
	if errors.Is(err, fs.ErrPermission) {
		return "", fault.Deniedf("the cluster in %s belongs to another user", abs).WithCause(err).
			WithNext("run this as that user, or choose another directory: --state-dir DIR")
	}
	if err == nil {
		_ = f.Close() // only tried
	}
	return StateDir(abs), nil
}

// lockFile is held by the process that runs the cluster.
const lockFile = "berth.lock"

// Path is a path below the directory.
func (d StateDir) Path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// ClientEnv is the file by which clients find the cluster.
func (d StateDir) ClientEnv() string { return d.Path(api.ClientEnvFile) }

// LogFile is the log of a detached cluster.
func (d StateDir) LogFile() string { return d.Path("berth.log") }

// Create makes the directory: passable for the children's users, readable for nobody else.
func (d StateDir) Create() error {
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	if err := os.MkdirAll(string(d), mode); err != nil {
		return fault.Invalidf("the state directory %s cannot be made", d).WithCause(err).
			WithNext("choose one that you may write: --state-dir DIR")
	}
	if err := os.Chmod(string(d), mode); err != nil {
		return fault.Invalidf("the state directory %s belongs to another user", d).WithCause(err).
			WithNext("choose one of your own: --state-dir DIR")
	}
	return nil
}

const (
	// killPatience is how long a process that was just killed may not look like it yet.
	killPatience = time.Second
	// dyingPatience bounds the wait for a process that is ending.
	dyingPatience = 10 * time.Second
)

// ownerDies reports whether the process that held the lock last is gone or on its way out.
func (d StateDir) ownerDies() bool {
	pid, ok := d.Owner()
	if !ok {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(fields, "Z") || strings.HasPrefix(fields, "X")
}

// Lock takes the directory for this process; the lock goes when the process does, however it
// ends. The file holds our pid for `berth status` and for the complaint of a second `up`.
func (d StateDir) Lock() (release func(), err error) {
	f, err := os.OpenFile(d.Path(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	// A process that was killed holds its lock until its last thread is gone.
	began := time.Now()
	for errors.Is(err, syscall.EWOULDBLOCK) && (time.Since(began) < killPatience || d.ownerDies() && time.Since(began) < dyingPatience) {
		<-time.After(10 * time.Millisecond)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		pid, _ := d.Owner()
		_ = f.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fault.Conflictf("a cluster runs on %s already (pid %d)", d, pid).WithReason("already-running").
				WithNext("berth status --state-dir %s, or berth down --state-dir %s", d, d)
		}
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock state directory: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing gives the lock back; there is no data to lose
}

// Owner returns the pid of the process that holds the lock, false when nobody does.
func (d StateDir) Owner() (pid int, running bool) {
	f, err := os.Open(d.Path(lockFile))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		return 0, false // given back with the file
	}
	text := make([]byte, 16)
	n, _ := f.ReadAt(text, 0)
	pid, err = strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid, err == nil && pid > 0
}

// PlaceManager puts what a manager keeps below this directory.
func (d StateDir) PlaceManager(cfg *manager.Config) { cfg.StateDir = d.Path("manager") }

// PlaceAgent puts what an agent keeps into a directory below this one and lets it join the manager that listens at an address. Its
// data port is open to this machine alone, where all app proxies of the cluster are, unless another one is configured.
func (d StateDir) PlaceAgent(cfg *agent.Config, name, managerAddr string) {
	cfg.Manager, cfg.StateDir = reachable(managerAddr), d.Path(name)
	if cfg.DataListen == agent.DefaultConfig().DataListen {
		cfg.DataListen = "127.0.0.1:0"
	}
}
