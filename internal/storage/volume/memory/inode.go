package memory

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/unicode/norm"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// inode is a file, directory or link; the disk's mu guards it. The contents of a file in a folder never change:
// writing replaces the file.
type inode struct {
	kind              volume.EntryKind
	mode              fs.FileMode
	modified, created time.Time
	data              []byte
	target            string
	children          map[string]*inode
}

func (d *disk) newDir(mode fs.FileMode) *inode {
	return &inode{kind: volume.KindDirectory, mode: mode.Perm(), modified: d.opt.Now(), created: d.opt.Now(), children: map[string]*inode{}}
}

func (d *disk) newFile(mode fs.FileMode) *inode {
	return &inode{kind: volume.KindFile, mode: mode.Perm(), modified: d.opt.Now(), created: d.opt.Now()}
}

func (n *inode) size() int64 {
	if n.kind == volume.KindSymlink {
		return int64(len(n.target))
	}
	return int64(len(n.data))
}

func (n *inode) entry(name string) volume.Entry {
	return volume.Entry{Name: name, Kind: n.kind, Mode: n.mode, Size: n.size(), Modified: n.modified, Created: n.created, Target: n.target}
}

func (n *inode) names() []string {
	names := make([]string, 0, len(n.children))
	for name := range n.children {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// each visits everything below n, a directory before what it holds.
func (n *inode) each(visit func(path string, n *inode)) {
	var down func(at string, n *inode)
	down = func(at string, n *inode) {
		for _, name := range n.names() {
			p := path.Join(at, name)
			visit(p, n.children[name])
			down(p, n.children[name])
		}
	}
	down("", n)
}

// Errors of looking up paths.
func missing(verb, what string) error {
	return fault.NotFoundf("cannot %s %s: it does not exist", verb, what)
}

func exists(verb, what string) error {
	return fault.Conflictf("cannot %s %s: it exists already", verb, what)
}

func noDirectory(p string) error {
	return fault.Invalidf("cannot use %q: a part of the path is no directory", p)
}

// lookup says how a path is followed.
type lookup struct {
	last    bool // through a symbolic link at the end, too
	noLinks bool // through none at all
	make    bool // directories that are missing are made
}

const maxFollow = 40

// find follows p from top. Links lead only to places below top. mu is held.
func (d *disk) find(top *inode, p string, how lookup) (*inode, error) {
	rest := strings.Split(p, "/")
	above := []*inode{top}
	followed, given := 0, len(rest) // given names are p's own, the ones before came from links
	for len(rest) > 0 {
		at := above[len(above)-1]
		name := rest[0]
		rest = rest[1:]
		own := len(rest) < given
		given = min(given, len(rest))
		switch {
		case at.kind != volume.KindDirectory:
			return nil, noDirectory(p)
		case name == "." || name == "":
			continue
		case name == "..":
			if len(above) == 1 {
				return nil, outside(p)
			}
			above = above[:len(above)-1]
			continue
		}
		next := at.children[name]
		if next == nil && how.make && own {
			next = d.newDir(0o755)
			at.children[norm.NFC.String(name)] = next
			at.modified = d.opt.Now()
		}
		if next == nil && how.make {
			return nil, noDirectory(p) // a link to nothing
		}
		if next == nil {
			return nil, missing("find", `"`+p+`"`)
		}
		if next.kind != volume.KindSymlink || len(rest) == 0 && !how.last {
			above = append(above, next)
			continue
		}
		if followed++; how.noLinks || followed > maxFollow {
			return nil, fault.Invalidf("cannot use %q: a symbolic link is in the way", p)
		}
		if strings.HasPrefix(next.target, "/") {
			return nil, outside(p)
		}
		rest = append(strings.Split(next.target, "/"), rest...)
	}
	return above[len(above)-1], nil
}

func outside(p string) error {
	return fault.Invalidf("cannot use %q: it leads out of the folder", p).
		WithNext("a symbolic link is followed only while it stays inside the folder")
}

// dir is find for a directory.
func (d *disk) dir(top *inode, p string, how lookup) (*inode, error) {
	how.last = true
	n, err := d.find(top, p, how)
	if err == nil && n.kind != volume.KindDirectory {
		err = noDirectory(p)
	}
	return n, err
}

// parent is the directory that p goes into and p's name there.
func (d *disk) parent(top *inode, p string, how lookup) (*inode, string, error) {
	dir, err := d.dir(top, path.Dir(p), how)
	return dir, path.Base(p), err
}

// existing is p as it is where that exists, else in the normal form that new names get.
func (d *disk) existing(top *inode, p string) string {
	if norm.NFC.IsNormalString(p) {
		return p
	}
	if _, err := d.find(top, p, lookup{}); err == nil {
		return p
	}
	return norm.NFC.String(p)
}

// place puts a finished file at p. It replaces a regular file and nothing else. mu is held.
func (d *disk) place(sc *scope, top *inode, p string, n *inode, how lookup) error {
	if p == "." {
		return fault.Conflictf("cannot write %q: a directory is there", p)
	}
	p = d.existing(top, p)
	how.make = true
	dir, name, err := d.parent(top, p, how)
	if err != nil {
		return err
	}
	if old := dir.children[name]; old != nil {
		switch old.kind {
		case volume.KindFile:
			d.give(sc, old.size())
		case volume.KindDirectory:
			return fault.Conflictf("cannot write %q: a directory is there", p)
		default:
			return fault.Conflictf("cannot write %q: something that is no regular file is there", p).WithNext("remove it first")
		}
	}
	dir.children[name] = n
	dir.modified = d.opt.Now()
	return nil
}
