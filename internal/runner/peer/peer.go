// Package peer makes the kernels of one session known to programs in this one: their names in the file of hosts, and for OpenSSH's client
// where and with which key they are reached.
//
// It writes as root into the container's own file system, and follows no symbolic link there: an image must not lead it into a folder.
package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/wire/run"
)

// Peer is a kernel of the session with an address.
type Peer struct {
	Name    string
	Address netip.Addr
	Port    int // of its SSH server; 0 for the usual one
}

// Parse reads a list of kernels, sorted by name. Two of one name, and two at one address and port, are an error.
func Parse(list []run.Peer) ([]Peer, error) {
	if len(list) > run.MaxPeers {
		return nil, fault.Invalidf("these are %d kernels, %d are the most", len(list), run.MaxPeers)
	}
	names, places := map[string]bool{}, map[netip.AddrPort]bool{}
	out := make([]Peer, 0, len(list))
	for _, p := range list {
		a, err := netip.ParseAddr(p.Address)
		a = a.Unmap()
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || !run.PeerName(p.Name) ||
			p.Port < 0 || p.Port > 65535 {
			return nil, fault.Invalidf("kernel %.64q at %.64q is none", p.Name, p.Address)
		}
		at := netip.AddrPortFrom(a, uint16(p.Port))
		if names[p.Name] || places[at] {
			return nil, fault.Invalidf("kernel %s at %s is named twice", p.Name, a)
		}
		names[p.Name], places[at] = true, true
		out = append(out, Peer{p.Name, a, p.Port})
	}
	slices.SortFunc(out, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

const (
	begin = "# kernels of this session; Berth keeps these lines"
	end   = "# end of the kernels of this session"
	// maxHosts bounds a file of hosts that somebody else wrote.
	maxHosts = 4 << 20
)

// hostsText is a file of hosts with the kernels in it. Other lines stay, without names of kernels: the first line with a name counts.
func hostsText(old []byte, peers []Peer) []byte {
	ours := make(map[string]bool, len(peers))
	for _, p := range peers {
		ours[p.Name] = true
	}
	var out bytes.Buffer
	inside := false
	for line := range strings.Lines(string(old)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == begin:
			inside = true
			continue
		case line == end:
			inside = false
			continue
		case inside:
			continue
		}
		text, note, _ := strings.Cut(line, "#")
		f := strings.Fields(text)
		kept := slices.DeleteFunc(slices.Clone(f), func(name string) bool { return ours[name] })
		switch {
		case len(kept) == len(f):
			out.WriteString(line + "\n")
		case len(kept) > 1:
			out.WriteString(kept[0] + "\t" + strings.Join(kept[1:], " "))
			if note != "" {
				out.WriteString(" #" + note)
			}
			out.WriteString("\n")
		}
	}
	if len(peers) > 0 {
		out.WriteString(begin + "\n")
		for _, p := range peers {
			out.WriteString(p.Address.String() + "\t" + p.Name + "\n")
		}
		out.WriteString(end + "\n")
	}
	return out.Bytes()
}

// Hosts puts the kernels into a file of hosts. The file is a mount of its own in a container, so it is not replaced but overwritten, in
// such a way that whoever reads it meanwhile finds whole lines.
func Hosts(file string, peers []Peer) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return fmt.Errorf("write the names of the session's kernels: %w", err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxHosts {
		return fault.Invalidf("%s is not a file of hosts", file)
	}
	old, err := io.ReadAll(io.LimitReader(f, maxHosts))
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	text := hostsText(old, peers)
	if bytes.Equal(old, text) {
		return nil
	}
	padded := text
	if n := len(old) - len(text); n > 0 {
		padded = append(slices.Clone(text), bytes.Repeat([]byte("\n"), n)...)
	}
	if _, err := f.WriteAt(padded, 0); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// alias is what OpenSSH's client calls every kernel of the session when it looks for its host key: all have the same.
const alias = "berth-session"

// Client is how OpenSSH's client reaches the session's kernels.
type Client struct {
	// File is a part of the client's configuration for everybody, KnownHosts and Identity are the files that it names.
	File, KnownHosts, Identity string
	User                       string
	Port                       int
}

func (c Client) text(peers []Peer) []byte {
	var b bytes.Buffer
	b.WriteString("# Berth keeps this file. What stands in ~/.ssh/config comes first.\n")
	if len(peers) == 0 {
		return b.Bytes()
	}
	for _, p := range peers { // the first value that is found for a host counts
		if p.Port != 0 {
			fmt.Fprintf(&b, "Host %s\n    Port %d\n", p.Name, p.Port)
		}
	}
	b.WriteString("Host")
	for _, p := range peers {
		b.WriteString(" " + p.Name)
	}
	fmt.Fprintf(&b, "\n    Port %d\n    User %s\n    IdentityFile %s\n    UserKnownHostsFile %s\n    HostKeyAlias %s\n"+
		"    StrictHostKeyChecking yes\n", c.Port, c.User, c.Identity, c.KnownHosts, alias)
	return b.Bytes()
}

// Configure writes the configuration. Directories that are missing are made; the container's image decides whether there is a client.
func (c Client) Configure(peers []Peer) error {
	if err := plainDirs(filepath.Dir(c.File)); err != nil {
		return fmt.Errorf("configure the SSH client: %w", err)
	}
	if err := replace(c.File, c.text(peers), 0o644); err != nil {
		return fmt.Errorf("configure the SSH client: %w", err)
	}
	return nil
}

// Keys writes the session's key for its user, and its host key as one that is known. hostKey is a line in OpenSSH's format.
func (c Client) Keys(private []byte, hostKey string, user *proc.Credential) error {
	if err := replace(c.KnownHosts, []byte(alias+" "+strings.TrimSpace(hostKey)+"\n"), 0o644); err != nil {
		return fmt.Errorf("write the known host key: %w", err)
	}
	if err := proc.AsUser(user, func() error { return replace(c.Identity, private, 0o600) }); err != nil {
		return fmt.Errorf("write the session's key: %w", err)
	}
	return nil
}

// plainDirs makes a directory and those above it that are missing. None may be a symbolic link.
func plainDirs(dir string) error {
	if dir == "/" {
		return nil
	}
	if err := plainDirs(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Lstat(dir)
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%s is not a directory", dir)
	}
	return err
}

// replace writes a file anew, whole or not at all.
func replace(file string, content []byte, mode os.FileMode) error {
	tmp := file + ".new"
	_ = os.Remove(tmp) // of a start that was cut short
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
