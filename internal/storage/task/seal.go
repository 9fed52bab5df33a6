package task

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/fault"
	wire "berth.dev/berth/internal/wire/storage"
)

// sealedStore is an object store as the journal keeps it: its keys are readable with the proxy's secret alone.
type sealedStore struct {
	Endpoint string `json:"endpoint"`
	Region   string `json:"region,omitempty"`
	Bucket   string `json:"bucket"`
	Keys     []byte `json:"keys"` // nonce and AES-256-GCM of storeKeys, bound to the task's id
}

type storeKeys struct{ Access, Secret string }

func sealer(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func seal(key []byte, id string, s wire.ObjectStore) (*sealedStore, error) {
	aead, err := sealer(key)
	if err != nil {
		return nil, fmt.Errorf("seal the keys of an object store: %w", err)
	}
	text, err := json.Marshal(storeKeys{s.AccessKey, s.SecretKey})
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce) //nolint:errcheck // it never fails
	return &sealedStore{
		Endpoint: s.Endpoint, Region: s.Region, Bucket: s.Bucket, Keys: aead.Seal(nonce, nonce, text, []byte(id)),
	}, nil
}

func (s *sealedStore) open(key []byte, id string) (wire.ObjectStore, error) {
	out := wire.ObjectStore{Endpoint: s.Endpoint, Region: s.Region, Bucket: s.Bucket}
	unreadable := fault.Deniedf("the keys of the object store cannot be read any more").WithReason("task-keys").
		WithNext("start the transfer again: the proxy's secret was changed meanwhile")
	aead, err := sealer(key)
	if err != nil || len(s.Keys) < aead.NonceSize() {
		return out, unreadable
	}
	text, err := aead.Open(nil, s.Keys[:aead.NonceSize()], s.Keys[aead.NonceSize():], []byte(id))
	if err != nil {
		return out, unreadable
	}
	var k storeKeys
	if err := json.Unmarshal(text, &k); err != nil {
		return out, unreadable
	}
	out.AccessKey, out.SecretKey = k.Access, k.Secret
	return out, nil
}
