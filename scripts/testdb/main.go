// Command testdb runs a command with one PostgreSQL server for all of its tests, in place of one for each package.
//
//	go run ./scripts/testdb COMMAND [ARGUMENT...]
//
// The address is in BERTH_TEST_DSN, and the same for every run in a source tree, because the go command forgets the result of a test when
// a variable that the test has read changes. A second run at the same time does without: its packages start servers of their own.
package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"berth.dev/berth/internal/manager/store/storetest"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testdb COMMAND [ARGUMENT...]")
		os.Exit(64)
	}
	if os.Getenv("BERTH_TEST_DSN") == "" {
		if err := serve(); err != nil {
			fmt.Fprintf(os.Stderr, "testdb: %v; each package starts a server of its own\n", err)
		}
	}
	os.Exit(run(os.Args[1:]))
}

// serve starts the server and sets its address for the command. The lock ends with this process.
func serve() error {
	tree, err := os.Getwd()
	if err != nil {
		return err
	}
	// Every server has a directory of its own, as an earlier one may still be removing its files; the link to it is what stays the same.
	link := filepath.Join(os.TempDir(), fmt.Sprintf("berth-testdb-%x", sha256.Sum256([]byte(tree)))[:24])
	lock, err := syscall.Open(link+".lock", syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open %s.lock: %w", link, err)
	}
	if err := syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.New("another run uses the server of this source tree")
	}
	dir, err := storetest.ServerDir()
	if err != nil {
		return err
	}
	// Autovacuum would visit hundreds of databases once a minute. A test uses its own for seconds and leaves nothing to clean.
	dsn, err := storetest.StartServer(dir, "autovacuum=off")
	if err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the link to an earlier server: %w", err)
	}
	if err := os.Symlink(dir, link); err != nil {
		return err
	}
	return os.Setenv("BERTH_TEST_DSN", strings.Replace(dsn, dir, link, 1))
}

func run(argv []string) int {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return max(ended.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testdb:", err)
		return 127
	}
	return 0
}
