package forward

import (
	"bytes"
	"io"
	"strconv"
)

// mover copies bodies from one connection to another. out holds bytes that are to be written before what follows: small pieces
// are gathered there to save system calls.
type mover struct {
	dst, src *sock
	out      []byte
	progress func(w waiting, moved int)
	moved    int64 // bytes of bodies that were read
	limit    int64 // of moved; 0 is none
}

// flushAt is how many gathered bytes are written although more could be gathered.
const flushAt = 32 << 10

func (m *mover) flush() error {
	if len(m.out) == 0 {
		return nil
	}
	m.progress(forTarget, 0)
	n, err := m.dst.write(m.out)
	m.progress(forTarget, n)
	m.out = m.out[:0]
	if err != nil {
		return writeError{err}
	}
	return nil
}

// fill writes the gathered bytes, then reads more.
func (m *mover) fill() error {
	if err := m.flush(); err != nil {
		return err
	}
	m.progress(forSource, 0)
	return m.src.fill(pageSize)
}

// data copies n bytes of a body; n < 0 copies until the source ends. The last bytes may stay gathered in out: flush writes them.
func (m *mover) data(n int64) error {
	full := false // the last read filled the page: there is more where it came from
	for n != 0 {
		b := m.src.buffered()
		if len(b) == 0 {
			if (n >= spliceFrom || n < 0 && full) && m.dst.raw != nil && m.src.raw != nil {
				if err := m.flush(); err != nil {
					return err
				}
				m.src.release()
				got, err := splice(m.dst, m.src, n, m.progress)
				m.moved += got
				if n > 0 {
					n -= got
				}
				switch {
				case err == io.EOF && n < 0:
					return nil
				case err == io.EOF:
					return io.ErrUnexpectedEOF
				case err != nil:
					return err
				}
				full = false
				if n == 0 {
					return nil
				}
			}
			if err := m.fill(); err != nil {
				switch {
				case err == io.EOF && n < 0:
					return nil
				case err == io.EOF:
					return io.ErrUnexpectedEOF
				}
				return err
			}
			b = m.src.buffered()
			full = len(b) == pageSize
		}
		if n > 0 && int64(len(b)) > n {
			b = b[:n]
		}
		m.moved += int64(len(b))
		if len(m.out) == 0 && (n < 0 || len(b) >= pageSize/2) { // nothing to join it with
			m.progress(forTarget, 0)
			w, err := m.dst.write(b)
			m.progress(forTarget, w)
			if err != nil {
				return writeError{err}
			}
		} else {
			m.out = append(m.out, b...)
		}
		m.src.take(len(b))
		if n > 0 {
			n -= int64(len(b))
		}
		if len(m.out) >= flushAt {
			if err := m.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	maxChunkLine = 1 << 10 // with extensions, which end here
	maxTrailers  = 8 << 10
)

// chunks copies a chunked body with its trailers and checks every byte of the chunk headers. framed says that the target gets
// chunks; else it gets the plain bytes. The last bytes may stay gathered in out: flush writes them.
func (m *mover) chunks(framed bool, mostFields int) error {
	for {
		size, err := m.chunkSize()
		if err != nil {
			return err
		}
		if m.limit > 0 && m.moved+size > m.limit {
			return errTooLarge
		}
		if framed {
			m.out = strconv.AppendInt(m.out, size, 16)
			m.out = append(m.out, "\r\n"...)
		}
		if size == 0 {
			return m.trailers(framed, mostFields)
		}
		if err := m.data(size); err != nil {
			return err
		}
		for len(m.src.buffered()) < 2 {
			if err := m.more(); err != nil {
				return err
			}
		}
		if b := m.src.buffered(); b[0] != '\r' || b[1] != '\n' {
			return malformed("a chunk is longer than it says")
		}
		m.src.take(2)
		if framed {
			m.out = append(m.out, "\r\n"...)
		}
	}
}

// more is fill for places where the end of the source is an error.
func (m *mover) more() error {
	err := m.fill()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// chunkSize reads the line that begins a chunk.
func (m *mover) chunkSize() (int64, error) {
	for {
		b := m.src.buffered()
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			if len(b) > maxChunkLine {
				return 0, malformed("a chunk's first line is too long")
			}
			if err := m.more(); err != nil {
				return 0, err
			}
			continue
		}
		if i > maxChunkLine {
			return 0, malformed("a chunk's first line is too long")
		}
		size, bad := parseChunkLine(b[:i])
		if bad != nil {
			return 0, bad
		}
		m.src.take(i + 1)
		return size, nil
	}
}

// parseChunkLine reads SIZE [";" extensions] CR.
func parseChunkLine(line []byte) (int64, *problem) {
	if len(line) < 2 || line[len(line)-1] != '\r' {
		return 0, malformed("a chunk's first line does not end with CR LF")
	}
	line = line[:len(line)-1]
	var size int64
	digits := 0
	for digits < len(line) {
		d := hexDigit(line[digits])
		if d < 0 {
			break
		}
		size = size<<4 | int64(d)
		if digits++; digits > 15 {
			return 0, malformed("a chunk's size is too large")
		}
	}
	if digits == 0 {
		return 0, malformed("a chunk's size is no number")
	}
	rest := bytes.TrimLeft(line[digits:], " \t")
	if len(rest) > 0 && rest[0] != ';' || len(rest) == 0 && digits != len(line) {
		return 0, malformed("a chunk's size is no number")
	}
	for _, c := range rest {
		if !textByte[c] && c != '\t' {
			return 0, malformed("a chunk's extension holds control characters")
		}
	}
	return size, nil
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// trailers copies the fields after the last chunk. Fields that concern framing, routing or authentication are left out.
func (m *mover) trailers(framed bool, most int) error {
	scan := 0
	for {
		b := m.src.buffered()
		end, next, bad := headEnd(b, scan)
		if bad != nil {
			return bad
		}
		if end > 0 {
			fields, bad := parseFields(nil, string(b[:end]), most)
			if bad != nil {
				return bad
			}
			m.src.take(end)
			if framed {
				for _, f := range fields {
					if f.kind == other {
						m.out = appendField(m.out, f.name, f.value)
					}
				}
				m.out = append(m.out, "\r\n"...)
			}
			return nil
		}
		scan = next
		if len(b) > maxTrailers {
			return malformed("the trailers are too long")
		}
		if err := m.more(); err != nil {
			return err
		}
	}
}
