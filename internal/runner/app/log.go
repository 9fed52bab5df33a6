package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxLog bounds the file of an app's output in bytes; the file before it is kept as well.
const maxLog = 1 << 20

// maxRecent is how much of the latest output is kept in memory for messages.
const maxRecent = 4 << 10

// output is what an app wrote, in a file that begins anew when it is full. What cannot be written is lost: an app does not
// wait for its log.
type output struct {
	file string
	now  func() time.Time

	mu     sync.Mutex
	f      *os.File
	size   int64
	recent []byte
	closed bool // what a process that was left behind still writes is lost
}

func newOutput(dir, name string, now func() time.Time) *output {
	return &output{file: filepath.Join(dir, name+".log"), now: now}
}

// note adds a line of the runner's own.
func (o *output) note(format string, args ...any) {
	line := o.now().UTC().Format(time.RFC3339) + " berth: " + fmt.Sprintf(format, args...) + "\n"
	o.mu.Lock()
	defer o.mu.Unlock()
	o.append([]byte(line))
}

// write adds what the app wrote.
func (o *output) write(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.append(b)
	o.recent = append(o.recent, b...)
	if over := len(o.recent) - maxRecent; over > 0 {
		o.recent = o.recent[:copy(o.recent, o.recent[over:])]
	}
}

// forget empties what messages quote, before a new start.
func (o *output) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recent = o.recent[:0]
}

func (o *output) append(b []byte) {
	if o.closed {
		return
	}
	if o.f != nil && o.size+int64(len(b)) > maxLog {
		_ = o.f.Close()
		_ = os.Rename(o.file, o.file+".1")
		o.f = nil
	}
	if o.f == nil {
		f, err := os.OpenFile(o.file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return
		}
		o.f, o.size = f, 0
		if fi, err := f.Stat(); err == nil {
			o.size = fi.Size()
		}
	}
	n, _ := o.f.Write(b)
	o.size += int64(n)
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.f != nil {
		_ = o.f.Close()
		o.f = nil
	}
}

// tail returns at most n bytes of the end, beginning with a whole line where there is one.
func (o *output) tail(n int64) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []byte
	cut := false
	for _, file := range []string{o.file, o.file + ".1"} {
		b, more, err := lastOf(file, n-int64(len(out)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(b, out...)
		if cut = more; cut {
			break
		}
	}
	if cut {
		if i := bytes.IndexByte(out, '\n'); i >= 0 && i+1 < len(out) {
			out = out[i+1:]
		}
	}
	return out, nil
}

// lastOf reads the last n bytes of a file; more says that there are others before.
func lastOf(file string, n int64) (b []byte, more bool, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if more = fi.Size() > n; more {
		if _, err := f.Seek(fi.Size()-n, io.SeekStart); err != nil {
			return nil, false, err
		}
	}
	b, err = io.ReadAll(io.LimitReader(f, n))
	return b, more, err
}

// lastLines are the last lines of the app's output for a message: short, and without what would move a reader's cursor.
func (o *output) lastLines() string {
	const lines, width = 8, 240
	o.mu.Lock()
	text := string(o.recent)
	o.mu.Unlock()
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = printable(line); line != "" {
			out = append(out, line[:min(len(line), width)])
		}
	}
	return strings.ToValidUTF8(strings.Join(out[max(0, len(out)-lines):], "\n"), "")
}

func printable(line string) string {
	line = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r != '\t' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, line)
	return strings.TrimSpace(line)
}
