package transfer

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// maxMissing bounds how many files the note at an archive's end names.
const maxMissing = 1000

// missingNote is the archive's last file when some could not be read.
const missingNote = "berth-not-included.txt"

// maxArchiveDepth and maxArchiveName bound what goes into an archive: walks hold a descriptor for each level, and
// neither zip nor most readers take longer names. What lies beyond is noted as missing.
const (
	maxArchiveDepth = 900
	maxArchiveName  = 60_000
)

// packer writes one format. Nothing is kept of what it has written but, in a zip, the directory at its end.
type packer interface {
	dir(name string, e volume.Entry) error
	link(name, target string, e volume.Entry) error
	// file copies exactly size bytes.
	file(name string, mode fs.FileMode, modified time.Time, size int64, r io.Reader) error
	close() error
}

// archive streams paths below parent. Names in the archive are relative to parent. Once bytes have gone out, a
// failure cuts the connection: an archive never looks complete when it is not.
func (s *Server) archive(w *reply, r *http.Request, tree volume.Tree, paths []string, parent, name string) error {
	format, ok := archiveFormats[r.URL.Query().Get("format")]
	if !ok {
		return fault.Invalidf("archives of format %q are not made", fault.Clip(r.URL.Query().Get("format"), maxEcho)).
			WithReason(reasonInvalidParams).WithNext("ask for zip or tar.zst")
	}
	h := w.Header()
	h.Set("Content-Type", format.contentType)
	h.Set("Content-Disposition", attachment(name+format.ext))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	// Many small files become few large writes; large writes go through.
	buffered := bufio.NewWriterSize(w, 256<<10)
	out := &gate{w: buffered}
	var p packer
	if format.ext == ".zip" {
		p = newZip(out)
	} else {
		var err error
		if p, err = newTarZst(out); err != nil {
			return err
		}
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	a := &archiver{tree: tree, p: p, parent: parent, buf: *buf}
	if err := a.run(r.Context(), paths); err != nil {
		out.shut.Store(true) // no end may be written that makes it look complete
		_ = p.close()        // stops its workers
		return err
	}
	if err := p.close(); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	return nil
}

// gate drops what comes once it is shut.
type gate struct {
	w    io.Writer
	shut atomic.Bool
}

func (g *gate) Write(p []byte) (int, error) {
	if g.shut.Load() {
		return len(p), nil
	}
	return g.w.Write(p)
}

// archiver walks a folder into a packer.
type archiver struct {
	tree    volume.Tree
	p       packer
	parent  string
	buf     []byte
	missing []string
	more    int // missing files beyond the bound
}

func (a *archiver) run(ctx context.Context, paths []string) error {
	for _, root := range paths {
		e, err := a.tree.Stat(root)
		if err != nil {
			return fmt.Errorf("archive %s: %w", root, err)
		}
		if root != a.parent {
			if err := a.add(ctx, root, e); err != nil {
				return err
			}
		}
		if e.Kind != volume.KindDirectory {
			continue
		}
		err = a.tree.Walk(ctx, root, func(p string, e volume.Entry) error {
			if p == root {
				return nil
			}
			return a.add(ctx, p, e)
		})
		if err != nil {
			return fmt.Errorf("archive %s: %w", root, err)
		}
	}
	return a.note()
}

// add packs one entry; only what would make the archive wrong is an error.
func (a *archiver) add(ctx context.Context, p string, e volume.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	name := a.name(p)
	switch {
	case len(name) > maxArchiveName:
		a.miss(p, errors.New("its path is too long for an archive"))
		return skipDir(e)
	case e.Kind == volume.KindDirectory && strings.Count(name, "/") >= maxArchiveDepth:
		a.miss(p, errors.New("it is nested too deep for an archive"))
		return fs.SkipDir
	}
	switch e.Kind {
	case volume.KindDirectory:
		return a.p.dir(name, e)
	case volume.KindFile:
		return a.file(p, name)
	case volume.KindSymlink:
		return a.symlink(p, name, e)
	}
	return nil // devices, sockets and pipes have no contents
}

// skipDir leaves out what lies below e.
func skipDir(e volume.Entry) error {
	if e.Kind == volume.KindDirectory {
		return fs.SkipDir
	}
	return nil
}

// symlink packs a link to a file as that file, so that it can be read everywhere, and a link to a directory of the
// same archive as a link. Other links lead nowhere for their reader, or out of the folder, and are left out.
func (a *archiver) symlink(p, name string, e volume.Entry) error {
	f, err := a.tree.Open(p)
	if err == nil {
		return a.copy(p, name, f)
	}
	if path.IsAbs(e.Target) {
		return nil
	}
	to := path.Join(path.Dir(p), e.Target)
	if to == ".." || strings.HasPrefix(to, "../") || !within(to, a.parent) {
		return nil
	}
	if at, err := a.tree.Stat(to); err != nil || at.Kind != volume.KindDirectory {
		return nil //nolint:nilerr // a link to nothing is left out
	}
	return a.p.link(name, e.Target, e)
}

func (a *archiver) file(p, name string) error {
	f, err := a.tree.Open(p)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil // removed since it was listed
	case fault.Is(err, fault.Unavailable):
		return fmt.Errorf("archive %s: %w", p, err)
	case err != nil:
		a.miss(p, err)
		return nil
	}
	return a.copy(p, name, f)
}

// copy packs the file as long as it is now; what is added meanwhile is left out, and a file that gets shorter ends
// the archive.
func (a *archiver) copy(p, name string, f volume.File) error {
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("archive %s: %w", p, err)
	}
	src := &exactly{r: f, left: fi.Size()}
	if err := a.p.file(name, fi.Mode().Perm(), fi.ModTime(), fi.Size(), &pieces{r: src, buf: a.buf}); err != nil {
		return fmt.Errorf("archive %s: %w", p, err)
	}
	return nil
}

func (a *archiver) miss(p string, err error) {
	if len(a.missing) == maxMissing {
		a.more++
		return
	}
	a.missing = append(a.missing, fmt.Sprintf("%s: %v", clipNote(p), err))
}

// clipNote shortens a path in its middle; a thousand of them are written at once.
func clipNote(p string) string {
	const most = 1024
	if len(p) > most {
		p = p[:most/2] + "…" + p[len(p)-most/2:]
	}
	return strings.ToValidUTF8(p, "_")
}

// note tells the reader of the archive what is missing in it.
func (a *archiver) note() error {
	if len(a.missing) == 0 {
		return nil
	}
	text := "These files could not be read and are not in this archive:\n" + strings.Join(a.missing, "\n") + "\n"
	if a.more > 0 {
		text += fmt.Sprintf("and %d more\n", a.more)
	}
	return a.p.file(missingNote, fileMode, time.Time{}, int64(len(text)), strings.NewReader(text))
}

// name is an entry's name in the archive: relative, with slashes, and meaning the same file on every system.
func (a *archiver) name(p string) string {
	if a.parent != "." {
		p = strings.TrimPrefix(p, a.parent+"/")
	}
	return safeName(p)
}

// safeName replaces what other systems read as a separator, a drive or a command to the terminal, and what is no
// text. A name that was changed gets a mark of the old one, so that two files stay two.
func safeName(p string) string {
	safe := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == '\\' {
			return '_'
		}
		return c
	}, strings.ToValidUTF8(p, "_"))
	if len(safe) > 1 && safe[1] == ':' {
		safe = safe[:1] + "_" + safe[2:]
	}
	if safe != p {
		sum := sha256.Sum256([]byte(p))
		safe += "~" + hex.EncodeToString(sum[:4])
	}
	return safe
}

// exactly reads so many bytes and fails when there are fewer.
type exactly struct {
	r    io.Reader
	left int64
}

var errShrank = errors.New("the file got shorter while it was read")

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if errors.Is(err, io.EOF) && e.left > 0 {
		err = errShrank
	} else if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// pieces makes io.Copy use a buffer that lives as long as the archive.
type pieces struct {
	r   io.Reader
	buf []byte
}

func (p *pieces) Read(b []byte) (int, error) { return p.r.Read(b) }

func (p *pieces) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(writerOnly{w}, readerOnly{p.r}, p.buf)
}

// tarZst packs as tar in zstd, at zstd's fastest level.
type tarZst struct {
	t *tar.Writer
	z *zstd.Encoder
}

func newTarZst(w io.Writer) (*tarZst, error) {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, fmt.Errorf("begin the archive: %w", err)
	}
	return &tarZst{t: tar.NewWriter(z), z: z}, nil
}

func (p *tarZst) dir(name string, e volume.Entry) error {
	return p.t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(e.Mode.Perm()), ModTime: e.Modified})
}

func (p *tarZst) link(name, target string, e volume.Entry) error {
	return p.t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: e.Modified})
}

func (p *tarZst) file(name string, mode fs.FileMode, modified time.Time, size int64, r io.Reader) error {
	err := p.t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), ModTime: modified, Size: size})
	if err == nil {
		_, err = io.Copy(p.t, r)
	}
	return err
}

func (p *tarZst) close() error { return errors.Join(p.t.Close(), p.z.Close()) }
