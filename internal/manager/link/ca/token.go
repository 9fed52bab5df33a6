package ca

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/wire/node"
)

const (
	keyJoinTokens = "join-tokens"
	// maxTokens bounds the valid join tokens; a newer one pushes out the oldest.
	maxTokens = 16
)

// storedToken is a join token as it is kept: hashed.
type storedToken struct {
	Hash [sha256.Size]byte `json:"hash"`
	At   time.Time         `json:"at"`
}

// NewToken makes a join token, valid until it is revoked.
func (a *Authority) NewToken(ctx context.Context) (node.JoinToken, error) {
	raw := make([]byte, 32)
	if _, err := io.ReadFull(a.random, raw); err != nil {
		return node.JoinToken{}, fmt.Errorf("make a join token: %w", err)
	}
	t := node.JoinToken{CA: a.pinned, Secret: base64.RawURLEncoding.EncodeToString(raw)}
	_, err := a.vault.Update(ctx, keyJoinTokens, func(old []byte) ([]byte, error) {
		list, err := readTokens(old)
		if err != nil {
			return nil, err
		}
		list = append(list, storedToken{Hash: sha256.Sum256([]byte(t.Secret)), At: a.clock.Now()})
		return json.Marshal(list[max(0, len(list)-maxTokens):])
	})
	if err != nil {
		return node.JoinToken{}, fmt.Errorf("store a join token: %w", err)
	}
	return t, nil
}

// RevokeTokens makes all join tokens invalid.
func (a *Authority) RevokeTokens(ctx context.Context) error {
	_, err := a.vault.Update(ctx, keyJoinTokens, func([]byte) ([]byte, error) { return []byte("[]"), nil })
	return err
}

// CheckToken compares with every valid token, in the same time whichever matches.
func (a *Authority) CheckToken(ctx context.Context, secret string) (bool, error) {
	raw, err := a.vault.Get(ctx, keyJoinTokens)
	if err != nil {
		return false, fmt.Errorf("load join tokens: %w", err)
	}
	list, err := readTokens(raw)
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256([]byte(secret))
	found := 0
	for _, t := range list {
		found |= subtle.ConstantTimeCompare(sum[:], t.Hash[:])
	}
	return found == 1 && secret != "", nil
}

func readTokens(raw []byte) ([]storedToken, error) {
	if raw == nil {
		return nil, nil
	}
	var list []storedToken
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read join tokens: %w", err)
	}
	return list, nil
}

// KeepTokenFile makes sure that the file holds a valid token of this cluster.
func (a *Authority) KeepTokenFile(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the join token file: %w", err)
	}
	if t, err := node.ParseJoinToken(string(text)); err == nil && t.CA == a.pinned {
		ok, err := a.CheckToken(ctx, t.Secret)
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
	}
	t, err := a.NewToken(ctx)
	if err != nil {
		return err
	}
	// Write beside and rename, so that no agent ever reads half a token.
	f, err := os.CreateTemp(filepath.Dir(path), ".join-token-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the join token file: %w", err)
	}
	_, err = f.WriteString(t.String() + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write the join token file %s: %w", path, err)
	}
	return nil
}
