package app

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
)

// secret makes a text that nobody can guess, and what is stored of it.
func (s *Service) secret() (text string, hash []byte, err error) {
	var raw [32]byte
	if _, err := io.ReadFull(s.d.Random, raw[:]); err != nil {
		return "", nil, fmt.Errorf("read randomness: %w", err)
	}
	text = base64.RawURLEncoding.EncodeToString(raw[:])
	return text, hashed(text), nil
}

// hashed is what the database keeps of a secret: texts of 256 random bits need no salt.
func hashed(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}
