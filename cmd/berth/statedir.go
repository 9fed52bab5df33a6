package main

import (
	"cmp"
	"encoding/json"
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
	"berth.dev/berth/internal/fault"
)

// stateDir is the directory of one cluster. Everything `berth up` knows is below it.
type stateDir string

// findStateDir resolves the flag, $BERTH_STATE_DIR and the default of this user, in this order.
func findStateDir(flag string) (stateDir, error) {
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
	return stateDir(abs), nil
}

// lockFile is held by the process that runs the cluster.
const lockFile = "berth.lock"

func (d stateDir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

func (d stateDir) clientEnv() string { return d.path(api.ClientEnvFile) }
func (d stateDir) logFile() string   { return d.path("berth.log") }
func (d stateDir) joinToken() string { return d.path("agent", "join.token") }

// create makes the directory: passable for the children's users, readable for nobody else.
func (d stateDir) create() error {
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
func (d stateDir) ownerDies() bool {
	pid, ok := d.owner()
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

// lock takes the directory for this process; the lock goes when the process does, however it
// ends. The file holds our pid for `berth status` and for the complaint of a second `up`.
func (d stateDir) lock() (release func(), err error) {
	f, err := os.OpenFile(d.path(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
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
		pid, _ := d.owner()
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

// owner returns the pid of the process that holds the lock, false when nobody does.
func (d stateDir) owner() (pid int, running bool) {
	f, err := os.Open(d.path(lockFile))
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

// ports are the addresses that clients and agents know; they stay the same over restarts.
type ports struct {
	API            string `json:"api"`
	Agent          string `json:"agent"`
	StorageClient  string `json:"storage_client,omitempty"`
	StorageManager string `json:"storage_manager,omitempty"`
	AppProxy       string `json:"app_proxy,omitempty"`
	// AppPorts is the first of appPorts ports for apps; 0 before they are chosen.
	AppPorts int `json:"app_ports,omitempty"`
}

func fixedPorts() ports {
	return ports{API: "127.0.0.1:8081", Agent: "127.0.0.1:6001", StorageClient: "127.0.0.1:6021", StorageManager: "127.0.0.1:6022", AppProxy: "127.0.0.1:10200", AppPorts: 10205}
}

// rememberedPorts returns those of the last start; free ones, as port 0, when there was none.
func (d stateDir) rememberedPorts() ports {
	const free = "127.0.0.1:0"
	p := ports{API: free, Agent: free, StorageClient: free, StorageManager: free, AppProxy: free}
	text, err := os.ReadFile(d.path("ports.json"))
	if err != nil {
		return p
	}
	var old ports
	if json.Unmarshal(text, &old) != nil || old.API == "" || old.Agent == "" {
		return p
	}
	// Written before there was a storage role, or an app proxy.
	old.StorageClient, old.StorageManager = cmp.Or(old.StorageClient, free), cmp.Or(old.StorageManager, free)
	old.AppProxy = cmp.Or(old.AppProxy, free)
	return old
}

func (d stateDir) rememberPorts(p ports) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(d.path("ports.json"), append(text, '\n'), 0o644)
}

// readEnvFile reads NAME=value lines; a missing file is empty.
func readEnvFile(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			out[name] = strings.Trim(value, `'`)
		}
	}
	return out, nil
}

// writeFile replaces a file at once, so that readers see the old or the new content, whole.
func writeFile(path string, text []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already after the rename
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
