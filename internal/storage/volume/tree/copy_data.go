package tree

import (
	"context"
	"io"

	"golang.org/x/sys/unix"
)

// copyChunk is how much is copied between two looks at the context.
const copyChunk = 8 << 20

// copyData copies the contents of in by the cheapest way that works: sharing blocks, copying inside the kernel
// or the file server, and copying through memory.
func (w *copyWorker) copyData(in, out int, st *unix.Stat_t) error {
	if st.Size == 0 {
		return nil
	}
	if !w.noClone.Load() {
		err := unix.IoctlFileClone(out, in)
		switch err {
		case nil:
			w.bytes.Add(st.Size)
			return nil
		case unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EXDEV:
			w.noClone.Store(true)
		case unix.ENOSPC, unix.EDQUOT, unix.EIO:
			return err
		}
	}
	sparse := st.Blocks*512 < st.Size
	end := int64(0)
	for end < st.Size {
		start, stop := end, st.Size
		if sparse {
			var err error
			start, stop, err = nextData(in, end, st.Size)
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			w.bytes.Add(start - end)
		}
		done, err := w.copyRange(in, out, start, stop)
		if err != nil {
			return err
		}
		if end = done; done < stop { // the source became shorter
			return unix.Ftruncate(out, done)
		}
	}
	if end < st.Size {
		w.bytes.Add(st.Size - end)
	}
	if sparse {
		return unix.Ftruncate(out, st.Size)
	}
	return nil
}

// nextData finds the next range with data at or after from; io.EOF when only a hole follows.
func nextData(in int, from, size int64) (start, stop int64, err error) {
	start, err = unix.Seek(in, from, unix.SEEK_DATA)
	switch err {
	case nil:
	case unix.ENXIO:
		return 0, 0, io.EOF
	case unix.EINVAL, unix.EOPNOTSUPP: // the file system does not tell
		return from, size, nil
	default:
		return 0, 0, err
	}
	if start >= size {
		return 0, 0, io.EOF
	}
	stop, err = unix.Seek(in, start, unix.SEEK_HOLE)
	if err != nil || stop <= start {
		stop = size
	}
	return start, min(stop, size), nil
}

// copyRange copies [at, stop) to the same place and returns where it ended, which is before stop only when the
// source did.
func (w *copyWorker) copyRange(in, out int, at, stop int64) (int64, error) {
	for at < stop {
		if w.stopped() {
			return at, context.Canceled // never published
		}
		n, err := 0, error(nil)
		chunk := int(min(stop-at, copyChunk))
		if !w.noRanges.Load() {
			inAt, outAt := at, at
			n, err = unix.CopyFileRange(in, &inAt, out, &outAt, chunk, 0)
			switch err {
			case unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM:
				w.noRanges.Store(true)
				n, err = 0, nil
			}
		}
		if n == 0 && err == nil { // unsupported, or the end, which some file systems claim too early
			n, err = w.copyThrough(in, out, at, chunk)
			if n == 0 && err == nil {
				return at, nil
			}
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return at, err
		}
		at += int64(n)
		w.bytes.Add(int64(n))
	}
	return at, nil
}

func (w *copyWorker) copyThrough(in, out int, at int64, limit int) (int, error) {
	if w.buffer == nil {
		w.buffer = make([]byte, 1<<20)
	}
	n, err := unix.Pread(in, w.buffer[:min(limit, len(w.buffer))], at)
	if err != nil || n == 0 {
		return 0, err
	}
	for done := 0; done < n; {
		m, err := unix.Pwrite(out, w.buffer[done:n], at+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		if m == 0 {
			return 0, io.ErrShortWrite
		}
		done += m
	}
	return n, nil
}
