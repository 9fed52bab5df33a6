package chassis

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// LogFileOptions bound a log file. The zero value stands for 20 MiB, a week and five old files.
type LogFileOptions struct {
	// Size is how large a file may become, Age how old, Keep how many earlier ones stay as PATH.1 (the newest) to PATH.N.
	Size int64
	Age  time.Duration
	Keep int
	// Renewed is called with every file that takes the place of one that was put aside; nil: nobody wants to know.
	Renewed func(*os.File)
	// Now is the clock; nil means the real one.
	Now func() time.Time
}

func (o LogFileOptions) filled() LogFileOptions {
	if o.Size <= 0 {
		o.Size = 20 << 20
	}
	if o.Age <= 0 {
		o.Age = 7 * 24 * time.Hour
	}
	if o.Keep <= 0 {
		o.Keep = 5
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// LogFile is a log that is put aside when it is too large or too old. Every Write is one record: it lies in one file as a whole, and it
// begins on a line of its own, also after a record that a full disk cut off.
type LogFile struct {
	o    LogFileOptions
	path string

	mu    sync.Mutex
	file  *os.File
	size  int64
	begun time.Time
	torn  bool
}

// OpenLogFile opens a log to go on with it. One that is due is put aside first.
func OpenLogFile(path string, o LogFileOptions) (*LogFile, error) {
	l := &LogFile{o: o.filled(), path: path}
	if err := l.open(); err != nil {
		return nil, err
	}
	if l.due(0) {
		l.rotate()
	}
	return l, nil
}

func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Perm() != 0o600 { // somebody else made it
		err = f.Chmod(0o600)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	if l.file != nil {
		_ = l.file.Close() // every record has been written
	}
	l.file, l.size, l.begun, l.torn = f, info.Size(), l.o.Now(), false
	if l.size == 0 {
		return nil
	}
	l.begun = info.ModTime()
	var s unix.Statx_t
	if unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &s) == nil && s.Mask&unix.STATX_BTIME != 0 {
		l.begun = time.Unix(s.Btime.Sec, int64(s.Btime.Nsec))
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, l.size-1); err == nil {
		l.torn = last[0] != '\n' // whoever wrote before was cut off
	}
	return nil
}

// due reports whether the file must be put aside before so many more bytes.
func (l *LogFile) due(more int) bool {
	return l.size > 0 && (l.size+int64(more) > l.o.Size || l.o.Now().Sub(l.begun) >= l.o.Age)
}

// rotate puts the file aside. Where that fails, the log goes on in the same file: a log that is too large is better than none.
func (l *LogFile) rotate() {
	for i := l.o.Keep; i > 1; i-- {
		if err := os.Rename(fmt.Sprintf("%s.%d", l.path, i-1), fmt.Sprintf("%s.%d", l.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.begun = l.o.Now()
			return
		}
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		l.begun = l.o.Now() // it is tried again after a while, not with every record
		return
	}
	if l.open() == nil && l.o.Renewed != nil {
		l.o.Renewed(l.file)
	}
}

// Write appends one record.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return 0, fs.ErrClosed
	}
	if l.due(len(p)) {
		l.rotate()
	}
	record := p
	if l.torn {
		record = append([]byte{'\n'}, p...)
	}
	n, err := l.file.Write(record)
	l.size += int64(n)
	if n > 0 {
		l.torn = n < len(record)
	}
	if err != nil {
		return max(0, n-len(record)+len(p)), err
	}
	return len(p), nil
}

// Close ends the log.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}
