// Package seal keeps secrets: the master key file, sealing of stored secrets with it, and hashing of
// passwords. It knows no table and no user.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
)

const (
	keySize = 32
	idSize  = 4
	format  = 1
)

// Key is the master key. Sealed text is: format byte, key id, nonce, AES-256-GCM ciphertext. Purpose text is
// authenticated, so that what was sealed for one place cannot be put into another.
//
// While the master key is being replaced there are two keys: one seals, both open. Keys that were read from a file follow
// the file; see Prepare.
type Key struct {
	path   string // "" for a key that was given
	random io.Reader

	mu   sync.Mutex
	keys []secretKey // the first seals, all open
	from fileState
}

// secretKey is one master key.
type secretKey struct {
	id   [idSize]byte
	aead cipher.AEAD
	raw  []byte
	role role
}

// LoadOrCreate reads the key file, or makes it with mode 0600 when it does not exist. A file that others
// may read is refused.
func LoadOrCreate(path string, random io.Reader) (*Key, error) {
	if err := sweep(filepath.Dir(path), time.Now()); err != nil {
		return nil, err
	}
	k, err := Load(path, random)
	if errors.Is(err, fs.ErrNotExist) {
		if err := create(path, random); err != nil {
			return nil, fmt.Errorf("create master key %s: %w", path, err)
		}
		return Load(path, random)
	}
	return k, err
}

// Load reads the key file; the error is os.ErrNotExist when there is none.
func Load(path string, random io.Reader) (*Key, error) {
	keys, from, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read master key: %w", err)
	}
	return &Key{path: path, random: random, keys: keys, from: from}, nil
}

// New makes a Key of 32 secret bytes.
func New(raw []byte, random io.Reader) (*Key, error) {
	k, err := derive(raw, roleCurrent)
	if err != nil {
		return nil, err
	}
	return &Key{random: random, keys: []secretKey{k}}, nil
}

func derive(raw []byte, as role) (k secretKey, err error) {
	if len(raw) != keySize {
		return k, fault.Invalidf("the master key has %d bytes instead of %d", len(raw), keySize)
	}
	enc, err := hkdf.Key(sha256.New, raw, nil, "berth seal v1", keySize)
	if err != nil {
		return k, fmt.Errorf("derive sealing key: %w", err)
	}
	id, err := hkdf.Key(sha256.New, raw, nil, "berth key id", idSize)
	if err != nil {
		return k, fmt.Errorf("derive key id: %w", err)
	}
	block, err := aes.NewCipher(enc)
	if err != nil {
		return k, fmt.Errorf("make cipher: %w", err)
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return k, fmt.Errorf("make cipher: %w", err)
	}
	copy(k.id[:], id)
	k.raw, k.role = bytes.Clone(raw), as
	return k, nil
}

// ID names the key that seals, without telling it.
func (k *Key) ID() string { return k.list()[0].ID() }

// ID names a key without telling it.
func (k secretKey) ID() string { return hex.EncodeToString(k.id[:]) }

// list is the keys as the file has them now. A file that cannot be read changes nothing.
func (k *Key) list() []secretKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == "" {
		return k.keys
	}
	if now, err := stateOf(k.path); err != nil || now == k.from {
		return k.keys
	}
	if keys, from, err := read(k.path); err == nil {
		k.keys, k.from = keys, from
	}
	return k.keys
}

// Seal encrypts a secret for a purpose such as "keypair AKIA...".
func (k *Key) Seal(secret Secret, purpose string) ([]byte, error) {
	with := k.list()[0]
	nonce := make([]byte, with.aead.NonceSize())
	if _, err := io.ReadFull(k.random, nonce); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	out := append([]byte{format}, with.id[:]...)
	out = append(out, nonce...)
	return with.aead.Seal(out, nonce, []byte(secret), []byte(purpose)), nil
}

// Open decrypts what Seal made for the same purpose.
func (k *Key) Open(sealed []byte, purpose string) (Secret, error) {
	if len(sealed) < 1+idSize || sealed[0] != format {
		return "", fault.New(fault.Internal, "a stored secret (%s) is damaged", purpose)
	}
	id := [idSize]byte(sealed[1 : 1+idSize])
	k.mu.Lock()
	known := k.keys
	k.mu.Unlock()
	of := func(l []secretKey) int { return slices.IndexFunc(l, func(s secretKey) bool { return s.id == id }) }
	i := of(known)
	if i < 0 {
		known = k.list() // the file may have a new key
		i = of(known)
	}
	if i < 0 {
		return "", fault.New(fault.Internal, "a stored secret (%s) was sealed with another master key (%s, ours is %s)",
			purpose, hex.EncodeToString(id[:]), known[0].ID()).
			WithNext("start the manager with the master key file that belongs to this database")
	}
	aead := known[i].aead
	head := 1 + idSize + aead.NonceSize()
	if len(sealed) < head {
		return "", fault.New(fault.Internal, "a stored secret (%s) is damaged", purpose)
	}
	plain, err := aead.Open(nil, sealed[1+idSize:head], sealed[head:], []byte(purpose))
	if err != nil {
		return "", fault.New(fault.Internal, "a stored secret (%s) is damaged or belongs elsewhere", purpose)
	}
	return Secret(plain), nil
}

// Reseal seals with the current key what an older one sealed. changed is false for what the current key sealed already.
func (k *Key) Reseal(sealed []byte, purpose string) (fresh []byte, changed bool, err error) {
	now := k.list()[0]
	if len(sealed) >= 1+idSize && [idSize]byte(sealed[1:1+idSize]) == now.id {
		return sealed, false, nil
	}
	secret, err := k.Open(sealed, purpose)
	if err != nil {
		return nil, false, err
	}
	fresh, err = k.Seal(secret, purpose)
	return fresh, err == nil, err
}
