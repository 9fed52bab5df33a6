package storetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/testkit/address"
)

// Server is a PostgreSQL server of a test's own, which the test may kill, stop and start. It listens on TCP of this host, and its
// database is migrated.
type Server struct {
	t    testing.TB
	bin  string
	dir  string
	host string
	port int
	cred *syscall.Credential
	cmd  *exec.Cmd
	// ended is closed when the process of cmd has ended.
	ended chan struct{}
}

// NewServer starts a server that ends with the test. Its log writer is so slow that a crash loses the transaction numbers of
// transactions which were rolled back, as it may with any server.
func NewServer(t testing.TB) *Server {
	t.Helper()
	return NewServerAt(t, "127.0.0.1")
}

// NewServerAt is NewServer that listens on another address of this host, and serves whoever reaches that.
func NewServerAt(t testing.TB, host string) *Server {
	t.Helper()
	bin, err := findBinaries()
	if err != nil && os.Getenv("BERTH_TEST_DSN") != "" {
		t.Skipf("the server of BERTH_TEST_DSN is not the test's own to crash, and there is no other: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := ServerDir()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, bin: bin, dir: dir, host: host}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	if s.cred, err = plainUser(dir); err != nil {
		t.Fatal(err)
	}
	if err := initialise(bin, dir, filepath.Join(dir, "data"), s.cred); err != nil {
		t.Fatal(err)
	}
	rules, err := os.OpenFile(filepath.Join(dir, "data", "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = rules.WriteString("host all all samenet trust\n")
		err = errors.Join(err, rules.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	// The port stays the test's own while the server is down.
	_, port, err := net.SplitHostPort(address.HoldAt(t, netip.MustParseAddr(host)))
	if err == nil {
		s.port, err = strconv.Atoi(port)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	db, err := store.Open(t.Context(), store.Config{DSN: s.DSN(), MaxConns: 2}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("migrate the test's database: %v", err)
	}
	db.Close()
	return s
}

// DSN is the address of the server's database.
func (s *Server) DSN() string {
	return fmt.Sprintf("host=%s port=%d user=berth dbname=postgres sslmode=disable", s.host, s.port)
}

// Addr is where the server listens.
func (s *Server) Addr() string { return net.JoinHostPort(s.host, strconv.Itoa(s.port)) }

// Start starts the server and returns when it serves.
func (s *Server) Start() {
	s.t.Helper()
	data := filepath.Join(s.dir, "data")
	args := []string{"-D", data, "-k", s.dir}
	for _, set := range []string{"listen_addresses=" + s.host, "port=" + strconv.Itoa(s.port), "fsync=off", "shared_buffers=16MB",
		"max_connections=60", "wal_writer_delay=10s", "checkpoint_timeout=1h", "timezone=" + serverTimeZone, "log_timezone=UTC"} {
		args = append(args, "-c", set)
	}
	deadline := time.Now().Add(patience)
	for {
		s.launch(args)
		if s.serves(deadline) {
			return
		}
		// The processes of a killed server may hold its memory for a moment; the new one refuses to start then.
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.t.Fatalf("PostgreSQL did not start: %s", log)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *Server) launch(args []string) {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the death of the thread that forked counts as the parent's
		started <- cmd.Start()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		s.t.Fatal(err)
	}
	s.cmd, s.ended = cmd, ended
}

// serves waits until the server serves; false: it has ended.
func (s *Server) serves(deadline time.Time) bool {
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		c, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			_ = c.Close(ctx)
		}
		cancel()
		if err == nil {
			return true
		}
		select {
		case <-s.ended:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return false
}

// Pause stops every process of the server, as SIGSTOP does, until it is called with false.
func (s *Server) Pause(on bool) {
	s.t.Helper()
	sign := syscall.SIGCONT
	if on {
		sign = syscall.SIGSTOP
	}
	// Backends lead process groups of their own.
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.cmd.Process.Pid, s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, pid := range append(strings.Fields(string(children)), strconv.Itoa(s.cmd.Process.Pid)) {
		n, err := strconv.Atoi(pid)
		if err == nil {
			_ = syscall.Kill(n, sign) // a backend may have ended
		}
	}
}

// Kill kills every process of the server and returns when none is left. Were only the postmaster killed, a connection could answer once
// more before its process notices.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGSTOP) // it starts no further process
	children := childrenOf(s.cmd.Process.Pid)
	_ = s.cmd.Process.Kill()
	<-s.ended
	s.cmd = nil
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, pid := range children {
		for deadline := time.Now().Add(30 * time.Second); runs(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				s.t.Errorf("process %d of PostgreSQL outlives SIGKILL", pid)
				return
			}
		}
	}
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) (children []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if _, parent := status(dir); parent == pid {
			child, _ := strconv.Atoi(filepath.Base(dir))
			children = append(children, child)
		}
	}
	return children
}

// runs reports whether a process is there and has not ended. One that has ended may wait for its parent.
func runs(pid int) bool {
	state, _ := status(filepath.Join("/proc", strconv.Itoa(pid)))
	return state != "" && state != "Z" && state != "X"
}

// status reads the state and the parent of the process whose directory in /proc is dir; no state: there is no such process.
func status(dir string) (state string, parent int) {
	text, _ := os.ReadFile(filepath.Join(dir, "stat"))
	_, fields, _ := strings.Cut(string(text), ") ")
	_, _ = fmt.Sscan(fields, &state, &parent)
	return state, parent
}

// KillBackend kills the process of one connection, as a defect or the kernel's killer of processes does. The server ends all others and
// recovers, and the postmaster lives on. It returns when the server serves again.
func (s *Server) KillBackend() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close(ctx)
	other, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		s.t.Fatal(err)
	}
	defer other.Close(ctx)
	pid := int(c.PgConn().PID())
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !strings.HasPrefix(string(name), "postgres") {
		s.t.Fatalf("process %d is no backend of PostgreSQL: %q %v", pid, name, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	// When the server has ended another connection, too, it lets nobody in before it has recovered.
	_, _ = other.Exec(ctx, "SELECT pg_sleep(30)")
	if !s.serves(time.Now().Add(patience)) {
		s.t.Fatal("PostgreSQL did not recover")
	}
}
