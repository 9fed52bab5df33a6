package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/durable"
)

const (
	// keyFile is where a session keeps its own private key, below its home; ours has the same name.
	keyFile = "id_container"
	// maxKey bounds a key in bytes.
	maxKey = 16 << 10
	// keyLife is after which a connection fetches the key anew beside itself, so that a key that changed is not kept for ever.
	keyLife = time.Hour
	// keyPatience is how long that may take.
	keyPatience = 10 * time.Second
	// forgotten is how long what is kept of a session lives unused.
	forgotten = 30 * 24 * time.Hour
)

// entry is what SSH programs need to know of a session.
type entry struct {
	id     string // of the session
	kernel string // of a session with several; "" is the main one
	host   string
	dir    string // private, of this session alone
	proxy  string // shell command that carries the bytes
}

// sessionName, sessionID and kernelName are what may become part of a configuration that programs read.
var (
	sessionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	sessionID   = regexp.MustCompile(`^[0-9a-fA-F][0-9a-fA-F-]{7,63}$`)
	kernelName  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
)

// entry makes the entry of a session, or of one of its kernels; it opens no connection.
func (a *verbs) entry(info api.SessionInfo, kernel string) (entry, error) {
	if !sessionName.MatchString(info.Name) || !sessionID.MatchString(info.ID) {
		return entry{}, fmt.Errorf("session %q with id %q cannot be a host of SSH", info.Name, info.ID)
	}
	if kernel != "" && !kernelName.MatchString(kernel) {
		return entry{}, frame.Usage(frame.Hint(fmt.Errorf("%q is not the name of a kernel", kernel), "name one such as sub1"))
	}
	host, below := info.Name+suffix, []string{"ssh", info.ID}
	if kernel != "" {
		host, below = kernel+"."+host, append(below, kernel)
	}
	self, err := a.self()
	if err != nil {
		return entry{}, fmt.Errorf("find this program: %w", err)
	}
	dir, err := a.CacheDir(below...)
	if err != nil {
		return entry{}, fmt.Errorf("make a place for the session's key: %w", err)
	}
	words := append([]string{self, "ssh-proxy"}, a.SelfFlags()...)
	for i, w := range words {
		words[i] = quoted(w)
	}
	e := entry{id: info.ID, kernel: kernel, host: host, dir: dir}
	e.proxy = strings.Join(append(words, e.ref()), " ")
	return e, nil
}

// ref is how the API names what the entry leads to.
func (e entry) ref() string { return frame.InKernel(e.id, e.kernel) }

// alias is under which its host key is remembered.
func (e entry) alias() string {
	if e.kernel == "" {
		return "berth-" + e.id
	}
	return "berth-" + e.id + "-" + e.kernel
}

// settings are the options of the session's host, in the words of ssh_config.
func (e entry) settings() [][2]string {
	file := func(name string) string { return `"` + percent(filepath.Join(e.dir, name)) + `"` }
	return [][2]string{
		{"User", user},
		{"HostKeyAlias", e.alias()},
		{"UserKnownHostsFile", file("known_hosts")},
		// A session makes its host key at its start, and nobody else answers behind the ticket: the first one is taken.
		{"StrictHostKeyChecking", "accept-new"},
		{"IdentityFile", file(keyFile)},
		{"IdentitiesOnly", "yes"},
		{"PreferredAuthentications", "publickey"},
		{"ProxyCommand", percent(e.proxy)},
	}
}

// options are the settings as arguments of ssh.
func (e entry) options() []string {
	var argv []string
	for _, s := range e.settings() {
		argv = append(argv, "-o", s[0]+"="+s[1])
	}
	return argv
}

// percent keeps ssh from expanding.
func percent(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// ensureKey fetches the session's key unless one is here that was fetched after the time given; cached says that it was.
func (e entry) ensureKey(ctx context.Context, c *api.Client, after time.Time) (cached bool, err error) {
	path := filepath.Join(e.dir, keyFile)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 == 0 && info.Size() > 0 &&
		info.ModTime().After(after) {
		return true, nil
	}
	text, err := fetchKey(ctx, c, e.ref(), e.dir)
	if err != nil {
		return false, fmt.Errorf("fetch the key of the session: %w", err)
	}
	return false, durable.WriteFile(path, text, 0o600)
}

// forgetOld removes what is kept of sessions that are not among these and were not used for a month. It may be what is left of
// another cluster's, hence not sooner.
func forgetOld(dir string, keep []entry, now time.Time) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, d := range list {
		info, err := d.Info()
		if err != nil || !d.IsDir() || !sessionID.MatchString(d.Name()) || now.Sub(info.ModTime()) < forgotten ||
			slices.ContainsFunc(keep, func(e entry) bool { return e.id == d.Name() }) {
			continue
		}
		_ = os.RemoveAll(filepath.Join(dir, d.Name()))
	}
}

func (e entry) forgetKey() { _ = os.Remove(filepath.Join(e.dir, keyFile)) }

// fetchKey downloads the key. What a session sends is hostile: it is unpacked into a directory of its own and has to be a
// private key.
func fetchKey(ctx context.Context, c *api.Client, session, dir string) ([]byte, error) {
	tmp, err := os.MkdirTemp(dir, ".fetch-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := c.DownloadFiles(ctx, session, []string{keyFile}, root, nil); err != nil {
		return nil, err
	}
	f, err := root.Open(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, frame.Hint(
			errors.New("the session has no file "+keyFile+" in "+home), "berth session restart %s makes a new one", session,
		)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxKey || !bytes.HasPrefix(text, []byte("-----BEGIN ")) || !bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		return nil, errors.New("the session's file " + keyFile + " is no private key")
	}
	return text, nil
}
