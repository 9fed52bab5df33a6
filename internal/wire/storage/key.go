package storage

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The purposes of keys that are derived for one proxy name from the secret that managers have.
const (
	// ManagerKey is what managers show in Auth.
	ManagerKey = "manager"
	// ClientKey signs the tokens of clients; only proxies need it.
	ClientKey = "client"
	// TasksKey protects the keys of object stores on disk; only proxies need it.
	TasksKey = "tasks"
	// AnnounceKey proves announcements.
	AnnounceKey = "announce"
)

// Key derives a key of a proxy from the secret by HKDF-SHA256; it is 64 hex digits. Nobody gets from it to the secret or another key.
func Key(secret, proxy, purpose string) string {
	raw, err := hkdf.Key(sha256.New, []byte(secret), nil, "berth storage "+purpose+" "+proxy, 32)
	if err != nil {
		panic(err) // only for lengths that this call never asks for
	}
	return hex.EncodeToString(raw)
}

// Keys are all keys of one proxy: what it needs of the secret, and nothing that another proxy has.
type Keys struct {
	Proxy    string `json:"proxy"`
	Manager  string `json:"manager"`
	Client   string `json:"client"`
	Tasks    string `json:"tasks"`
	Announce string `json:"announce"`
}

// KeysOf derives the keys of a proxy from the secret.
func KeysOf(secret, proxy string) Keys {
	return Keys{Proxy: proxy, Manager: Key(secret, proxy, ManagerKey), Client: Key(secret, proxy, ClientKey),
		Tasks: Key(secret, proxy, TasksKey), Announce: Key(secret, proxy, AnnounceKey)}
}

// keysMark begins the text of Keys, so that it is not taken for a secret.
const keysMark = "berth-storage-key-1."

// Text is what stands in a proxy's configuration in the place of the secret.
func (k Keys) Text() (string, error) {
	raw, err := json.Marshal(k)
	if err != nil {
		return "", fmt.Errorf("render the key of storage proxy %s: %w", k.Proxy, err)
	}
	return keysMark + base64.RawURLEncoding.EncodeToString(raw), nil
}

// ErrKeys: a text begins like the keys of a proxy and is none.
var ErrKeys = errors.New("the key of the storage proxy is damaged")

// ReadKeys reads what a proxy has: keys of its own, or the secret that all keys are derived from. own tells which.
func ReadKeys(text, proxy string) (k Keys, own bool, err error) {
	encoded, own := strings.CutPrefix(text, keysMark)
	if !own {
		return KeysOf(text, proxy), false, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || json.Unmarshal(raw, &k) != nil {
		return Keys{}, true, ErrKeys
	}
	for _, key := range []string{k.Manager, k.Client, k.Tasks, k.Announce} {
		if raw, err := hex.DecodeString(key); err != nil || len(raw) != 32 {
			return Keys{}, true, ErrKeys
		}
	}
	return k, true, nil
}

// Prove is the proof of an announcement: its sender has the announce key of the proxy that it names.
func Prove(announceKey string, p Presence) string {
	mac := hmac.New(sha256.New, []byte(announceKey))
	say := func(texts ...string) {
		for _, t := range texts {
			_, _ = fmt.Fprintf(mac, "%d:%s,", len(t), t) // a hash takes everything
		}
	}
	say("berth.dev storage announcement", p.Proxy, p.Node, p.ManagerURL, p.ClientURL, p.StartedAt.UTC().Format(time.RFC3339Nano),
		fmt.Sprint(p.Protocol, len(p.Volumes)))
	for _, v := range p.Volumes {
		say(v.Name, v.Backend, v.Path, v.FSPrefix)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// Proven reports whether an announcement carries its proof.
func Proven(announceKey string, p Presence) bool {
	return hmac.Equal([]byte(p.Proof), []byte(Prove(announceKey, p)))
}
