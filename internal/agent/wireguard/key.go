// Package wireguard is an encrypted tunnel between this agent and others, in user space: one device with one key, and of every peer its
// public key, where it is reached, and the one inner address that it may send from.
//
// The inner address of an agent follows from its public key. So nobody has to give addresses out, and nobody can have that of another.
//
// The device is in a network namespace where nothing else is. What begins there leaves through the tunnel or not at all: when the process
// ends, the device is gone, and packets have no way until it is back. Only its encrypted packets are sent in the namespace of the host.
package wireguard

import (
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"

	"berth.dev/berth/internal/fault"
)

// PublicKey is what others know an agent by. Its zero value is no key.
type PublicKey [32]byte

// ParsePublicKey reads what String writes.
func ParsePublicKey(text string) (PublicKey, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if k := PublicKey(zeroExtended(b)); err == nil && len(b) == len(k) && k != (PublicKey{}) {
		return k, nil
	}
	return PublicKey{}, fault.Invalidf("%.64q is no public key of a tunnel", text).WithCause(err)
}

func zeroExtended(b []byte) []byte { return append(b, make([]byte, 32)...)[:32] }

// String is the key in base64, as WireGuard's tools write it.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Inner is the address that an agent has inside of tunnels: a unique local one of IPv6 (RFC 4193), of which the key decides 120 bits.
func (k PublicKey) Inner() netip.Addr {
	sum := sha256.Sum256(append([]byte("berth tunnel address\x00"), k[:]...))
	a := [16]byte(sum[:16])
	a[0] = 0xfd
	return netip.AddrFrom16(a)
}

// Key is the private key of an agent. It is never printed.
type Key struct{ private *ecdh.PrivateKey }

// Public is the key that others may know.
func (k Key) Public() PublicKey { return PublicKey(k.private.PublicKey().Bytes()) }

// String hides the key.
func (Key) String() string { return "[private key]" }

// GoString hides the key.
func (Key) GoString() string { return "[private key]" }

func (k Key) hex() string { return hex.EncodeToString(k.private.Bytes()) }

// keyFile holds the private key in the agent's state directory.
const keyFile = "tunnel.key"

// LoadKey reads the private key of an agent from its state directory. Where there is none it makes one of random, so an agent that is
// installed anew has another.
func LoadKey(state *os.Root, random io.Reader) (Key, error) {
	text, err := readKey(state)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(state, random)
	}
	if err != nil {
		return Key{}, err
	}
	private, err := ecdh.X25519().NewPrivateKey(text)
	if err != nil {
		return Key{}, badKey(state, err)
	}
	return Key{private}, nil
}

func badKey(state *os.Root, cause error) error {
	return fault.New(fault.Internal, "%s/%s holds no private key of a tunnel", state.Name(), keyFile).WithCause(cause).
		WithNext("remove the file and start the agent again: it makes another key")
}

func readKey(state *os.Root) ([]byte, error) {
	info, err := state.Lstat(keyFile)
	if err != nil {
		return nil, fmt.Errorf("look for the private key of tunnels: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Internal, "%s/%s can be read by others (%s)", state.Name(), keyFile, info.Mode()).
			WithNext("remove the file and start the agent again: it makes another key")
	}
	f, err := state.Open(keyFile)
	if err != nil {
		return nil, fmt.Errorf("open the private key of tunnels: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 33))
	if err != nil {
		return nil, fmt.Errorf("read the private key of tunnels: %w", err)
	}
	return b, nil
}

func makeKey(state *os.Root, random io.Reader) (Key, error) {
	b := make([]byte, 32)
	if _, err := io.ReadFull(random, b); err != nil {
		return Key{}, fmt.Errorf("make a private key of tunnels: %w", err)
	}
	private, err := ecdh.X25519().NewPrivateKey(b)
	if err != nil {
		return Key{}, fmt.Errorf("make a private key of tunnels: %w", err)
	}
	// A process that dies in the middle leaves the other name, which the next attempt writes over.
	const half = keyFile + ".new"
	if err := state.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Key{}, fmt.Errorf("make a private key of tunnels: %w", err)
	}
	f, err := state.OpenFile(half, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Key{}, fmt.Errorf("make a private key of tunnels: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = state.Rename(half, keyFile)
	}
	if err != nil {
		return Key{}, fmt.Errorf("keep the private key of tunnels: %w", err)
	}
	return Key{private}, nil
}
