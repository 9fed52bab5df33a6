package sshd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// copier speaks the protocol of the older scp: records of one line (C file, D directory, E its end, T times), each answered by a
// zero byte or by an error.
type copier struct {
	in       *bufio.Reader
	out      *bufio.Writer
	complain io.Writer
	keep     bool // times and modes
	deep     bool // directories
	into     bool // the target must be a directory
	failed   bool
}

// errPeer ends a copy: the other side does not follow the protocol, or has left.
var errPeer = errors.New("the other side ended the copy")

// maxLine bounds a record; a name has at most 255 bytes.
const maxLine = 8 << 10

// maxDepth bounds how deep directories are nested.
const maxDepth = 1000

func serveSCP(args []string, in io.Reader, out, complain io.Writer) int {
	c := &copier{in: bufio.NewReaderSize(in, 128<<10), out: bufio.NewWriterSize(out, 128<<10), complain: complain}
	var to, from bool
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		flags := args[0][1:]
		args = args[1:]
		if flags == "-" {
			break
		}
		for _, f := range flags {
			switch f {
			case 't':
				to = true
			case 'f':
				from = true
			case 'p':
				c.keep = true
			case 'r':
				c.deep = true
			case 'd':
				c.into = true
			case 'v', 'q':
			default:
				fmt.Fprintf(complain, "scp: this session's scp serves copies of other machines only; it has no option -%c\n", f)
				return 1
			}
		}
	}
	var err error
	switch {
	case to && !from && len(args) == 1:
		err = c.sink(args[0])
	case from && !to && len(args) > 0:
		err = c.source(args)
	default:
		fmt.Fprintln(complain, "scp: this session's scp serves copies of other machines only: use scp there")
		return 1
	}
	if err = errors.Join(err, c.out.Flush()); err != nil || c.failed {
		return 1
	}
	return 0
}

// tell sends an error that the other side shows; the copy goes on.
func (c *copier) tell(err error) error {
	c.failed = true
	text := err.Error()
	var p *os.PathError
	if errors.As(err, &p) {
		text = p.Path + ": " + p.Err.Error()
	}
	fmt.Fprintf(c.out, "\x01scp: %s\n", strings.ReplaceAll(text, "\n", " "))
	return c.out.Flush()
}

func (c *copier) ack() error {
	_ = c.out.WriteByte(0) // shown by Flush
	return c.out.Flush()
}

func (c *copier) line() (string, error) {
	var b []byte
	for len(b) <= maxLine {
		part, err := c.in.ReadSlice('\n')
		b = append(b, part...)
		if err == nil {
			return string(b[:len(b)-1]), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
	return "", errPeer
}

// status reads the other side's answer; a mere error leaves the copy going on.
func (c *copier) status() (ok bool, err error) {
	b, err := c.in.ReadByte()
	if err != nil || b == 0 {
		return err == nil, err
	}
	text, err := c.line()
	fmt.Fprintln(c.complain, text)
	c.failed = true
	if b != 1 || err != nil {
		return false, errPeer
	}
	return false, nil
}

type times struct{ access, modified time.Time }

// record is one line from a source.
type record struct {
	kind byte
	mode os.FileMode
	size int64
	name string
	set  times
}

func parseRecord(line string) (record, error) {
	bad := fmt.Errorf("%w: it sent %.40q", errPeer, line)
	if line == "" {
		return record{}, bad
	}
	r := record{kind: line[0]}
	f := strings.SplitN(line[1:], " ", 3)
	switch r.kind {
	case 'E':
		return r, nil
	case 'T':
		f = strings.Fields(line[1:])
		if len(f) != 4 {
			return record{}, bad
		}
		modified, err1 := strconv.ParseInt(f[0], 10, 64)
		access, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 != nil || err2 != nil {
			return record{}, bad
		}
		r.set = times{access: time.Unix(access, 0), modified: time.Unix(modified, 0)}
		return r, nil
	case 'C', 'D':
		if len(f) != 3 {
			return record{}, bad
		}
		mode, err1 := strconv.ParseUint(f[0], 8, 12)
		size, err2 := strconv.ParseInt(f[1], 10, 64)
		if err1 != nil || err2 != nil || size < 0 {
			return record{}, bad
		}
		r.mode, r.size, r.name = fileMode(uint32(mode)), size, f[2]
		if r.name == "" || r.name == "." || r.name == ".." || strings.ContainsAny(r.name, "/\x00") {
			return record{}, fmt.Errorf("%w: it sent the name %.40q", errPeer, r.name)
		}
		return r, nil
	}
	return record{}, bad
}

func fileMode(bits uint32) os.FileMode {
	m := os.FileMode(bits & 0o777)
	for _, b := range []struct {
		bit  uint32
		mode os.FileMode
	}{{0o4000, os.ModeSetuid}, {0o2000, os.ModeSetgid}, {0o1000, os.ModeSticky}} {
		if bits&b.bit != 0 {
			m |= b.mode
		}
	}
	return m
}

// level is a directory that is being filled.
type level struct {
	dir  string
	mode os.FileMode
	set  *times
}

func (c *copier) sink(target string) error {
	isDir := func(p string) bool {
		fi, err := os.Stat(p)
		return err == nil && fi.IsDir()
	}
	if c.into && !isDir(target) {
		_ = c.tell(fmt.Errorf("%s: %w", target, syscall.ENOTDIR)) // it ends anyway
		return errPeer
	}
	if err := c.ack(); err != nil {
		return err
	}
	var levels []level
	var pending *times
	for {
		if b, err := c.in.Peek(1); err == io.EOF {
			return nil
		} else if err == nil && (b[0] == 1 || b[0] == 2) { // the source tells of a file that it cannot read
			if _, err := c.status(); err != nil {
				return err
			}
			continue
		}
		line, err := c.line()
		if err != nil {
			return err
		}
		r, err := parseRecord(line)
		if err != nil {
			_ = c.tell(err)
			return err
		}
		place := target
		if len(levels) > 0 {
			place = filepath.Join(levels[len(levels)-1].dir, r.name)
		} else if isDir(target) {
			place = filepath.Join(target, r.name)
		}
		switch r.kind {
		case 'T':
			pending = &r.set
			err = c.ack()
		case 'C':
			err = c.receive(place, r, pending)
			pending = nil
		case 'D':
			if !c.deep || len(levels) >= maxDepth {
				_ = c.tell(fmt.Errorf("%s: a directory was not expected", r.name))
				return errPeer
			}
			if merr := os.Mkdir(place, r.mode.Perm()|0o700); merr != nil && !isDir(place) {
				_ = c.tell(merr)
				return errPeer // there is no way to refuse a directory and take the rest
			}
			levels = append(levels, level{dir: place, mode: r.mode, set: pending})
			pending = nil
			err = c.ack()
		case 'E':
			if len(levels) == 0 {
				return errPeer
			}
			l := levels[len(levels)-1]
			levels = levels[:len(levels)-1]
			err = c.finish(l.dir, l.mode, l.set)
		}
		if err != nil {
			return err
		}
	}
}

// finish sets what a file or directory is to have in the end, and answers.
func (c *copier) finish(file string, mode os.FileMode, set *times) error {
	var err error
	if c.keep {
		err = os.Chmod(file, mode)
	}
	if set != nil {
		err = errors.Join(err, os.Chtimes(file, set.access, set.modified))
	}
	if err != nil {
		return c.tell(err)
	}
	return c.ack()
}

func (c *copier) receive(file string, r record, set *times) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK, r.mode.Perm()|0o200)
	if err != nil {
		return c.tell(err) // the source goes on with the next
	}
	defer f.Close()
	if err := c.ack(); err != nil {
		return err
	}
	body := &io.LimitedReader{R: c.in, N: r.size}
	_, werr := io.Copy(f, body)
	if _, err := io.Copy(io.Discard, body); err != nil || body.N > 0 { // what was announced must be read, even when the disk is full
		return errors.Join(errPeer, err)
	}
	if fi, serr := f.Stat(); werr == nil && serr == nil && fi.Mode().IsRegular() && fi.Size() > r.size {
		werr = f.Truncate(r.size)
	}
	werr = errors.Join(werr, f.Close())
	if ok, err := c.status(); err != nil || !ok {
		return err
	}
	if werr != nil {
		return c.tell(werr)
	}
	return c.finish(file, r.mode, set)
}

func (c *copier) source(paths []string) error {
	if ok, err := c.status(); err != nil || !ok {
		return errors.Join(err, errPeer)
	}
	for _, p := range paths {
		if err := c.send(p, 0); err != nil {
			return err
		}
	}
	return nil
}

func modeBits(m os.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range []struct {
		bit  uint32
		mode os.FileMode
	}{{0o4000, os.ModeSetuid}, {0o2000, os.ModeSetgid}, {0o1000, os.ModeSticky}} {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}

// send sends one file or directory. An error of its own is told to the sink; what is returned ends the copy.
func (c *copier) send(file string, depth int) error {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return c.tell(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return c.tell(err)
	}
	name := filepath.Base(filepath.Clean(file))
	kind, size := byte('C'), fi.Size()
	switch {
	case strings.ContainsRune(name, '\n'):
		return c.tell(fmt.Errorf("%q: scp cannot name it", name))
	case fi.IsDir() && c.deep && depth < maxDepth:
		kind, size = 'D', 0
	case !fi.Mode().IsRegular():
		return c.tell(fmt.Errorf("%s: not a regular file", file))
	}
	if c.keep {
		access := fi.ModTime().Unix()
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			access = st.Atim.Sec
		}
		fmt.Fprintf(c.out, "T%d 0 %d 0\n", fi.ModTime().Unix(), access)
		if ok, err := c.answer(); err != nil || !ok {
			return err
		}
	}
	fmt.Fprintf(c.out, "%c%04o %d %s\n", kind, modeBits(fi.Mode()), size, name)
	if ok, err := c.answer(); err != nil || !ok {
		return err
	}
	if kind == 'D' {
		return c.sendDir(f, file, depth)
	}
	n, rerr := io.CopyN(c.out, f, size)
	for left := size - n; left > 0; { // the file became shorter, or cannot be read: what was announced must come
		zeros := make([]byte, min(left, chunk))
		if _, err := c.out.Write(zeros); err != nil {
			return err
		}
		left -= int64(len(zeros))
	}
	if rerr != nil {
		err = c.tell(fmt.Errorf("%s: %w", file, rerr))
	} else {
		err = c.ack()
	}
	if err == nil {
		_, err = c.status()
	}
	return err
}

func (c *copier) answer() (bool, error) {
	if err := c.out.Flush(); err != nil {
		return false, err
	}
	return c.status()
}

func (c *copier) sendDir(f *os.File, dir string, depth int) error {
	names, err := f.Readdirnames(-1)
	if err != nil {
		if err := c.tell(err); err != nil {
			return err
		}
	}
	slices.Sort(names)
	for _, n := range names {
		if err := c.send(filepath.Join(dir, n), depth+1); err != nil {
			return err
		}
	}
	_, _ = c.out.WriteString("E\n") // shown by answer
	_, err = c.answer()
	return err
}
