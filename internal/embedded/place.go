package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/internal/fault"
)

// maxSocketPath is the kernel's limit for the path of a unix socket, without the final zero.
const maxSocketPath = 107

// account is who a child runs as.
type account struct {
	name string
	uid  int
	gid  int
	// cred is nil when the child keeps our own user.
	cred *syscall.Credential
}

// accountFor picks the user of a child: our own unless we are root; then the first of names
// that exists, else nobody. PostgreSQL refuses to run as root, and no child needs to.
func accountFor(names ...string) (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			continue
		}
		return dropped(name, uid, gid), nil
	}
	return account{}, fault.Unavailablef("no user to run child processes as: none of %s and nobody exists", strings.Join(names, ", ")).
		WithNext("create a user named %s, or run berth as an ordinary user", names[0])
}

func dropped(name string, uid, gid int) account {
	return account{name: name, uid: uid, gid: gid,
		cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

// ownerOf returns the account that owns an existing path, when it may be used for a child.
func ownerOf(path string) (account, bool) {
	info, err := os.Stat(path)
	if err != nil || os.Geteuid() != 0 {
		return account{}, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 {
		return account{}, false
	}
	return dropped("uid "+strconv.Itoa(int(st.Uid)), int(st.Uid), int(st.Gid)), true
}

// privateDir makes dir with mode 0700, owned by the account.
func (a account) privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if a.cred == nil {
		return os.Chmod(dir, 0o700)
	}
	if err := os.Chown(dir, a.uid, a.gid); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// checkReachable reports the first directory above path that the account cannot enter.
func (a account) checkReachable(path string) error {
	if a.cred == nil {
		return nil
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("stat %s: no owner known", dir)
		}
		bit := fs.FileMode(0o001)
		switch {
		case int(st.Uid) == a.uid:
			bit = 0o100
		case int(st.Gid) == a.gid:
			bit = 0o010
		}
		if info.Mode().Perm()&bit == 0 {
			return fault.Invalidf("user %s, which the database runs as, cannot enter %s (mode %04o), so nothing below it can hold the state", a.name,
				dir, info.Mode().Perm()).
				WithReason("state-dir-unreachable").
				WithNext("choose a state directory such as /var/lib/berth with --state-dir, or allow passing with: chmod o+x %s", dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

// SocketDir returns a directory for a unix socket of the given file name: run/NAME below the
// state directory, or, where that path is too long for the kernel, a short one elsewhere
// whose name is derived from the state directory.
func SocketDir(stateDir, name, file string) string {
	dir := filepath.Join(stateDir, "run", name)
	if len(filepath.Join(dir, file)) <= maxSocketPath {
		return dir
	}
	base := "/tmp"
	if x := os.Getenv("XDG_RUNTIME_DIR"); os.Geteuid() != 0 && filepath.IsAbs(x) && len(x) < 60 {
		base = x
	}
	sum := sha256.Sum256([]byte(stateDir))
	return filepath.Join(base, fmt.Sprintf("berth-%d-%s-%s", os.Geteuid(), hex.EncodeToString(sum[:6]), name))
}

// prepareSocketDir makes the directory private to the account. Names below /tmp can be
// guessed, so one that belongs to a stranger is refused.
func (a account) prepareSocketDir(dir string) error {
	if info, err := os.Lstat(dir); err == nil {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !info.IsDir() || !ok || int(st.Uid) != a.uid && int(st.Uid) != os.Geteuid() {
			return fault.Conflictf("%s exists and is not a directory of ours", dir).
				WithNext("remove it, or choose a shorter --state-dir")
		}
	}
	return a.privateDir(dir)
}

// PrepareSocketDir makes a directory of SocketDir private to this process's user.
func PrepareSocketDir(dir string) error {
	return account{uid: os.Geteuid(), gid: os.Getegid()}.prepareSocketDir(dir)
}

// RemoveSocketDir takes a directory of SocketDir away again after its owner has stopped, when it
// lies outside the state directory, where nobody else would ever clean up.
func RemoveSocketDir(stateDir, dir string) error {
	if strings.HasPrefix(dir, filepath.Clean(stateDir)+"/") {
		return nil
	}
	return os.RemoveAll(dir)
}
