package notice

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The header fields of a webhook.
const (
	HeaderSignature = "Berth-Signature"
	HeaderID        = "Berth-Notice-Id"
)

// MaxAge is how old a signature may be that Verify accepts.
const MaxAge = 5 * time.Minute

// ErrForged is the error of a webhook that was not signed with the secret, or not now.
var ErrForged = errors.New("the webhook is not genuine")

// Verify reads the body of a webhook that was signed with the secret less than MaxAge before now. signature is the value of
// HeaderSignature.
func Verify(secret, signature string, body []byte, now time.Time) (m Message, err error) {
	at, mac, ok := parse(signature)
	if !ok {
		return m, ErrForged
	}
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return m, ErrForged
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > MaxAge || age < -MaxAge {
		return m, ErrForged
	}
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(at + "."))
	h.Write(body)
	if !hmac.Equal(h.Sum(nil), mac) {
		return m, ErrForged
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("read a notice: %w", err)
	}
	return m, nil
}

// parse reads "t=TIME,v1=HEX".
func parse(signature string) (at string, mac []byte, ok bool) {
	at, code, ok := strings.Cut(signature, ",")
	if !ok || !strings.HasPrefix(at, "t=") || !strings.HasPrefix(code, "v1=") {
		return "", nil, false
	}
	mac, err := hex.DecodeString(code[len("v1="):])
	return at[len("t="):], mac, err == nil
}
