package posix

import (
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// journal is .berth/tasks: a document per task and, while it is claimed, a lock file.
type journal struct{ v *vol }

const (
	docSuffix   = ".json"
	claimSuffix = ".claim"
)

func (j *journal) dir() (*directory, error) { return j.v.root.readable(tasksDir, noLinks) }

// with calls fn with the directory of the journals.
func (j *journal) with(verb, id string, fn func(d *directory) error) error {
	if err := volume.CheckID(id); err != nil {
		return err
	}
	d, err := j.dir()
	if err == nil {
		defer d.Close()
		err = fn(d)
	}
	return explain(err, verb, "the journal of task "+id)
}

func (j *journal) Put(id string, doc []byte) error {
	if len(doc) > maxDoc {
		return fault.Invalidf("the journal of task %s is larger than %d bytes", id, maxDoc)
	}
	return j.with("write", id, func(d *directory) error { return d.put(id+docSuffix, doc, j.v.owner) })
}

func (j *journal) Get(id string) (doc []byte, err error) {
	err = j.with("read", id, func(d *directory) (e error) { doc, e = d.get(id + docSuffix); return e })
	return doc, err
}

// Delete removes the document; one that is not there is deleted.
func (j *journal) Delete(id string) error {
	return j.with("delete", id, func(d *directory) error {
		if err := d.unlink(id + docSuffix); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return d.sync()
	})
}

func (j *journal) List() ([]string, error) {
	d, err := j.dir()
	if err != nil {
		return nil, explain(err, "list", "the journals of tasks")
	}
	defer d.Close()
	names, err := d.names()
	if err != nil {
		return nil, explain(err, "list", "the journals of tasks")
	}
	ids := names[:0]
	for _, n := range names {
		if strings.HasPrefix(n, ".") { // a document that was being written, maybe by one that died
			if st, err := d.stat(n); err == nil && j.v.now().Sub(timeOf(st.Mtime)) > 24*time.Hour {
				_ = d.unlink(n)
			}
			continue
		}
		if id, ok := strings.CutSuffix(n, docSuffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Claim locks a file of its own, for Put replaces the document. Its holder removes it in the end.
func (j *journal) Claim(id string) (release func(), ok bool, err error) {
	err = j.with("claim", id, func(d *directory) error {
		f, held, err := d.lockFile(noWait(), id+claimSuffix, true)
		if err != nil || !held {
			return err
		}
		ok = true
		release = func() {
			if d, err := j.dir(); err == nil {
				if d.holds(id+claimSuffix, f) {
					_ = d.unlink(id + claimSuffix)
				}
				d.Close()
			}
			f.Close()
		}
		return nil
	})
	return release, ok && err == nil, err
}
