package seal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"berth.dev/berth/internal/fault"
)

// The master key is replaced in three steps, each of which may be repeated:
//
//  1. Prepare adds a new key that only opens. Every manager must have it before anybody seals with it.
//  2. Use makes the new key the one that seals. Everything that is stored is sealed again after it.
//  3. Forget drops the old key, when nothing is sealed with it any more.
//
// The file is the state: whoever is killed between two steps finds there which one comes next. Managers that run follow the file.

// Replaced reports whether a replacement was begun: the file has a second key.
func (k *Key) Replaced() bool { return len(k.list()) > 1 }

// Prepare adds a new key to the file, unless one is waiting there. It returns the new key's id.
func (k *Key) Prepare() (id string, err error) {
	err = k.change(func(keys []secretKey) ([]secretKey, error) {
		if len(keys) > 1 {
			other := keys[1]
			if other.role == roleNext {
				id = other.ID()
				return nil, nil
			}
			return nil, fault.Conflictf("the master key was replaced, and the old one %s is still there", other.ID()).
				WithNext("finish with: berth admin rotate-master-key --step finish")
		}
		next, err := fresh(k.random, roleNext)
		if err != nil {
			return nil, err
		}
		id = next.ID()
		return append(slices.Clone(keys), next), nil
	})
	return id, err
}

// Use makes the prepared key the one that seals; the one before still opens. It does nothing when that was done.
func (k *Key) Use() error {
	return k.change(func(keys []secretKey) ([]secretKey, error) {
		switch {
		case len(keys) == 1:
			return nil, fault.Conflictf("no new master key is prepared").WithNext("berth admin rotate-master-key --step prepare")
		case keys[1].role == roleOld:
			return nil, nil
		}
		now, old := keys[1], keys[0]
		now.role, old.role = roleCurrent, roleOld
		return []secretKey{now, old}, nil
	})
}

// Forget drops the old key. Call it only when everything is sealed with the key in, which ID named before that was done: when another
// one is in use by now, somebody else replaces the master key as well, and the old key is what all may still be sealed with.
func (k *Key) Forget(in string) error {
	return k.change(func(keys []secretKey) ([]secretKey, error) {
		switch {
		case keys[0].ID() != in:
			return nil, fault.Conflictf("the master key was replaced once more meanwhile: %s is in use, not %s", keys[0].ID(), in).
				WithNext("berth admin rotate-master-key --step finish")
		case len(keys) == 1:
			return nil, nil
		case keys[1].role == roleNext:
			return nil, fault.Conflictf("the new master key %s is not in use yet", keys[1].ID()).
				WithNext("berth admin rotate-master-key --step use")
		}
		return keys[:1], nil
	})
}

// change writes what fn makes of the keys of the file; nil changes nothing.
func (k *Key) change(fn func([]secretKey) ([]secretKey, error)) error {
	if k.path == "" {
		return fault.New(fault.Internal, "this master key has no file")
	}
	// Commands of two terminals take turns.
	dir, err := os.Open(filepath.Dir(k.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	keys, _, err := read(k.path)
	if err != nil {
		return err
	}
	next, err := fn(keys)
	if err != nil || next == nil {
		return err
	}
	if err := put(k.path, next, os.Rename); err != nil {
		return err
	}
	k.list()
	return nil
}
