// Package seal keeps secrets: the master key file, sealing of stored secrets with it, and hashing of
// passwords. It knows no table and no user.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/fault"
)

const (
	keySize = 32
	idSize  = 4
	format  = 1
)

// Key is the master key. Sealed text is: format byte, key id, nonce, AES-256-GCM ciphertext. Purpose text is
// authenticated, so that what was sealed for one place cannot be put into another.
type Key struct {
	id     [idSize]byte
	aead   cipher.AEAD
	random io.Reader
}

// LoadOrCreate reads the key file, or makes it with mode 0600 when it does not exist. A file that others
// may read is refused.
func LoadOrCreate(path string, random io.Reader) (*Key, error) {
	raw, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := create(path, random); err != nil {
			return nil, fmt.Errorf("create master key %s: %w", path, err)
		}
		raw, err = read(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read master key: %w", err)
	}
	return New(raw, random)
}

// Load reads the key file; it is os.ErrNotExist when there is none.
func Load(path string, random io.Reader) (*Key, error) {
	raw, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read master key: %w", err)
	}
	return New(raw, random)
}

// New makes a Key of 32 secret bytes.
func New(raw []byte, random io.Reader) (*Key, error) {
	if len(raw) != keySize {
		return nil, fault.Invalidf("the master key has %d bytes instead of %d", len(raw), keySize)
	}
	enc, err := hkdf.Key(sha256.New, raw, nil, "berth seal v1", keySize)
	if err != nil {
		return nil, fmt.Errorf("derive sealing key: %w", err)
	}
	id, err := hkdf.Key(sha256.New, raw, nil, "berth key id", idSize)
	if err != nil {
		return nil, fmt.Errorf("derive key id: %w", err)
	}
	block, err := aes.NewCipher(enc)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	k := &Key{aead: aead, random: random}
	copy(k.id[:], id)
	return k, nil
}

// ID names the key without telling it.
func (k *Key) ID() string { return hex.EncodeToString(k.id[:]) }

// Seal encrypts a secret for a purpose such as "keypair AKIA...".
func (k *Key) Seal(secret Secret, purpose string) ([]byte, error) {
	nonce := make([]byte, k.aead.NonceSize())
	if _, err := io.ReadFull(k.random, nonce); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	out := append([]byte{format}, k.id[:]...)
	out = append(out, nonce...)
	return k.aead.Seal(out, nonce, []byte(secret), []byte(purpose)), nil
}

// Open decrypts what Seal made for the same purpose.
func (k *Key) Open(sealed []byte, purpose string) (Secret, error) {
	head := 1 + idSize + k.aead.NonceSize()
	if len(sealed) < head || sealed[0] != format {
		return "", fault.New(fault.Internal, "a stored secret (%s) is damaged", purpose)
	}
	if [idSize]byte(sealed[1:1+idSize]) != k.id {
		return "", fault.New(fault.Internal, "a stored secret (%s) was sealed with another master key (%s, ours is %s)",
			purpose, hex.EncodeToString(sealed[1:1+idSize]), k.ID()).
			WithNext("start the manager with the master key file that belongs to this database")
	}
	plain, err := k.aead.Open(nil, sealed[1+idSize:head], sealed[head:], []byte(purpose))
	if err != nil {
		return "", fault.New(fault.Internal, "a stored secret (%s) is damaged or belongs elsewhere", purpose)
	}
	return Secret(plain), nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fault.Invalidf("master key %s may be read by others (mode %04o)", path, st.Mode().Perm()).WithNext("chmod 600 %s", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return nil, err
	}
	raw, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(raw) != keySize {
		return nil, fault.Invalidf("master key %s is not a key: it must hold %d hexadecimal digits", path, 2*keySize)
	}
	return raw, nil
}

// create writes the whole key under another name first and links it, so that no reader sees half a
// key and of two creators the first wins.
func create(path string, random io.Reader) error {
	raw := make([]byte, keySize)
	if _, err := io.ReadFull(random, raw); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".master-key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(hex.EncodeToString(raw) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
