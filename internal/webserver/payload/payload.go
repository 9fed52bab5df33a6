// Package payload reads bodies that clients of the wire encode when they reach a web server by plain HTTP: AES-256-CBC under a key that
// follows from the server's address and the body's own first characters. Whoever reads the body can compute the key, so this hides
// nothing from anybody on the way; TLS does. It is here because clients send it.
//
// A body is "<iv>:<base64 of the ciphertext>" with 16 characters as iv. The key is the first 32 characters of base64(endpoint) + iv + iv,
// where endpoint is scheme://host[:port] as the client writes it. The padding is that of PKCS #7.
package payload

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
)

const (
	ivLength  = 16
	keyLength = 32
)

// ErrUnreadable says that a body is not encoded, or with none of the endpoints.
var ErrUnreadable = errors.New("the encoded body cannot be read")

// Open decodes a body with the first of the endpoints that gives JSON. The endpoints are how clients may write the server's address.
func Open(body []byte, endpoints ...string) ([]byte, error) {
	iv, text, ok := bytes.Cut(bytes.TrimSpace(body), []byte{':'})
	if !ok || len(iv) != ivLength {
		return nil, ErrUnreadable
	}
	sealed := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(sealed, text)
	if sealed = sealed[:n]; err != nil || n == 0 || n%aes.BlockSize != 0 {
		return nil, ErrUnreadable
	}
	for _, endpoint := range endpoints {
		if plain, ok := open(sealed, iv, endpoint); ok && json.Valid(plain) {
			return plain, nil
		}
	}
	return nil, ErrUnreadable
}

func key(iv []byte, endpoint string) []byte {
	text := base64.StdEncoding.EncodeToString([]byte(endpoint)) + string(iv) + string(iv)
	return []byte(text)[:keyLength]
}

func open(sealed, iv []byte, endpoint string) ([]byte, bool) {
	block, err := aes.NewCipher(key(iv, endpoint))
	if err != nil {
		return nil, false
	}
	plain := make([]byte, len(sealed))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(plain, sealed)
	pad := int(plain[len(plain)-1])
	if pad == 0 || pad > aes.BlockSize {
		return nil, false
	}
	for _, b := range plain[len(plain)-pad:] {
		if int(b) != pad {
			return nil, false
		}
	}
	return plain[:len(plain)-pad], true
}
