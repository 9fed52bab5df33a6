package transfer

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"time"

	"github.com/klauspost/compress/zstd"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

const (
	// zipTurn is how many entries one zip.Writer packs: it keeps about a third of a KiB for each.
	zipTurn = 4096
	// maxSpool bounds the packed directory of an archive in memory, some tens of bytes for each entry.
	maxSpool = 256 << 20
)

// zipPacker stores without compression: what folders hold is mostly compressed already, and packing then runs at
// the speed of the disk and the line. Whoever wants it smaller asks for tar.zst, which is both smaller and faster
// than deflate. Sizes come after the contents, so files of any size are written as zip64 without knowing it before.
//
// The directory at a zip's end describes every entry. Folders have millions of them, so writers take turns: the
// directory that each one writes at its end is packed and put away, and all of them follow at the archive's end.
type zipPacker struct {
	to      *sidetrack
	z       *zip.Writer
	entries int // of z

	turns    int
	packed   bytes.Buffer
	pack     *zstd.Encoder
	ended    uint64 // entries of earlier writers
	dirBytes uint64 // of their directories
}

// sidetrack takes what a writer has written for the archive, or for the side while that is set.
type sidetrack struct {
	out  io.Writer
	at   int64 // bytes in out
	side *bytes.Buffer
}

func (s *sidetrack) Write(p []byte) (int, error) {
	if s.side != nil {
		return s.side.Write(p)
	}
	n, err := s.out.Write(p)
	s.at += int64(n)
	return n, err
}

func newZip(w io.Writer) *zipPacker {
	p := &zipPacker{to: &sidetrack{out: w}}
	p.begin()
	return p
}

func (p *zipPacker) begin() {
	p.z, p.entries = zip.NewWriter(p.to), 0
	p.z.SetOffset(p.to.at)
}

// end ends the writer of this turn and gives its directory, once the rest of its last entry is in the archive.
func (p *zipPacker) end() (dir []byte, err error) {
	if err := p.z.Flush(); err != nil {
		return nil, err
	}
	p.to.side = &bytes.Buffer{}
	err = p.z.Close()
	side := p.to.side.Bytes()
	p.to.side = nil
	if err != nil {
		return nil, err
	}
	tail, dirSize, err := zipEnd(side)
	if err != nil {
		return nil, err
	}
	rest := len(side) - tail - dirSize
	if _, err := p.to.Write(side[:rest]); err != nil {
		return nil, err
	}
	return side[rest : rest+dirSize], nil
}

// turn lets another writer go on.
func (p *zipPacker) turn() error {
	dir, err := p.end()
	if err != nil {
		return err
	}
	if p.pack == nil {
		p.pack, err = zstd.NewWriter(&p.packed, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(1<<20))
		if err != nil {
			return err
		}
	}
	if _, err := p.pack.Write(dir); err != nil {
		return err
	}
	if p.packed.Len() > maxSpool {
		return fault.Exhaustedf("the folder has too many files for one zip").WithNext("ask for format=tar.zst, or for its directories one by one")
	}
	p.ended += uint64(p.entries)
	p.dirBytes += uint64(len(dir))
	p.turns++
	p.begin()
	return nil
}

func (p *zipPacker) create(name string, mode fs.FileMode, modified time.Time) (io.Writer, error) {
	if p.entries == zipTurn {
		if err := p.turn(); err != nil {
			return nil, fmt.Errorf("pack the archive's directory: %w", err)
		}
	}
	p.entries++
	h := &zip.FileHeader{Name: name, Method: zip.Store, Modified: modified}
	h.SetMode(mode)
	return p.z.CreateHeader(h)
}

func (p *zipPacker) dir(name string, e volume.Entry) error {
	_, err := p.create(name+"/", fs.ModeDir|e.Mode.Perm(), e.Modified)
	return err
}

func (p *zipPacker) link(name, target string, e volume.Entry) error {
	w, err := p.create(name, fs.ModeSymlink|0o777, e.Modified)
	if err == nil {
		_, err = io.WriteString(w, target)
	}
	return err
}

func (p *zipPacker) file(name string, mode fs.FileMode, modified time.Time, _ int64, r io.Reader) error {
	w, err := p.create(name, mode, modified)
	if err == nil {
		_, err = io.Copy(w, r)
	}
	return err
}

func (p *zipPacker) close() error {
	if p.turns == 0 {
		return p.z.Close()
	}
	last, err := p.end()
	if cerr := p.pack.Close(); err != nil || cerr != nil {
		return errors.Join(err, cerr)
	}
	start := uint64(p.to.at)
	unpack, err := zstd.NewReader(&p.packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return err
	}
	defer unpack.Close()
	if _, err := io.Copy(writerOnly{p.to}, unpack); err != nil {
		return err
	}
	if _, err := p.to.Write(last); err != nil {
		return err
	}
	_, err = p.to.Write(zipTail(p.ended+uint64(p.entries), start, p.dirBytes+uint64(len(last))))
	return err
}

// The records at a zip's end and their sizes.
const (
	zipEndMark, zipEndSize         = 0x06054b50, 22
	zip64LocatorMark, zip64LocSize = 0x07064b50, 20
	zip64EndMark, zip64EndSize     = 0x06064b50, 56
)

// zipEnd reads the end of a zip without a comment: how long the records at its end are and how long the directory
// before them is.
func zipEnd(text []byte) (tail, dirSize int, err error) {
	le := binary.LittleEndian
	n := len(text)
	if n < zipEndSize || le.Uint32(text[n-zipEndSize:]) != zipEndMark {
		return 0, 0, errors.New("the end of a zip is missing")
	}
	tail, size := zipEndSize, uint64(le.Uint32(text[n-zipEndSize+12:]))
	if at := n - zipEndSize - zip64LocSize; at >= zip64EndSize && le.Uint32(text[at:]) == zip64LocatorMark {
		tail += zip64LocSize + zip64EndSize
		size = le.Uint64(text[n-tail+40:])
	}
	if size > uint64(n-tail) {
		return 0, 0, errors.New("the directory of a zip is missing")
	}
	return tail, int(size), nil
}

// zipTail are the records at the end of a zip whose directory has so many entries and lies at start.
func zipTail(entries, start, size uint64) []byte {
	le := binary.LittleEndian
	var b []byte
	if entries >= math.MaxUint16 || start >= math.MaxUint32 || size >= math.MaxUint32 {
		b = le.AppendUint32(b, zip64EndMark)
		b = le.AppendUint64(b, zip64EndSize-12) // what follows
		b = le.AppendUint16(b, 45)              // made by and for version 4.5
		b = le.AppendUint16(b, 45)
		b = append(b, make([]byte, 8)...) // disks
		for _, n := range []uint64{entries, entries, size, start} {
			b = le.AppendUint64(b, n)
		}
		b = le.AppendUint32(b, zip64LocatorMark)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, start+size) // where the record above is
		b = le.AppendUint32(b, 1)
	}
	b = le.AppendUint32(b, zipEndMark)
	b = le.AppendUint32(b, 0) // disks
	b = le.AppendUint16(b, uint16(min(entries, math.MaxUint16)))
	b = le.AppendUint16(b, uint16(min(entries, math.MaxUint16)))
	b = le.AppendUint32(b, uint32(min(size, math.MaxUint32)))
	b = le.AppendUint32(b, uint32(min(start, math.MaxUint32)))
	return le.AppendUint16(b, 0) // no comment
}
