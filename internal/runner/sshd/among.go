package sshd

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// SessionKeys are the keys with which the kernels of one session log in to each other. All kernels have the same.
type SessionKeys struct {
	Host    ssh.Signer
	User    ssh.PublicKey
	Private []byte // of the user's key, in OpenSSH's format
}

// KeysOf derives the keys of a secret that only the kernels of the session know. The user's key does not tell the host's.
func KeysOf(secret string) (SessionKeys, error) {
	var out SessionKeys
	derive := func(purpose string) (ed25519.PrivateKey, error) {
		seed, err := hkdf.Key(sha256.New, []byte(secret), nil, "berth session ssh "+purpose, ed25519.SeedSize)
		if err != nil {
			return nil, fmt.Errorf("derive the session's %s key: %w", purpose, err)
		}
		return ed25519.NewKeyFromSeed(seed), nil
	}
	host, err := derive("host")
	if err != nil {
		return out, err
	}
	user, err := derive("user")
	if err != nil {
		return out, err
	}
	if out.Host, err = ssh.NewSignerFromKey(host); err != nil {
		return out, fmt.Errorf("read the session's host key: %w", err)
	}
	if out.User, err = ssh.NewPublicKey(user.Public()); err != nil {
		return out, fmt.Errorf("read the session's user key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(user, "of this session's kernels")
	if err != nil {
		return out, fmt.Errorf("render the session's user key: %w", err)
	}
	out.Private = pem.EncodeToMemory(block)
	return out, nil
}

// Among returns the same server for the other kernels of the session: the session's key logs in, and no other. It has a host key and a
// bound of connections of its own.
func (s *Server) Among(keys SessionKeys) *Server {
	a := *s
	a.only, a.room, a.ring = string(keys.User.Marshal()), new(room), newRing(nil)
	a.host = func() (ssh.Signer, error) { return keys.Host, nil }
	return &a
}

// amongOnly decides about a key where only the session's own logs in.
func (s *Server) amongOnly(key string) (*ssh.Permissions, error) {
	if key != s.only {
		return nil, errors.New("only kernels of the session log in here")
	}
	return &ssh.Permissions{Extensions: map[string]string{extKey: key}}, nil
}
