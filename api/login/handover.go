package login

import (
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/base64"
	"errors"

	"berth.dev/berth/api"
)

// A login that is made in a browser reaches a command line as a code that only this command line can read: the page encrypts the login's
// token to a key that the command line made for it (HPKE, RFC 9180: X25519, HKDF-SHA256, AES-128-GCM). Whoever sees the code, the
// address of the page or the history of the browser has nothing.

const handoverInfo = "berth login of a command line, version 1"

// maxCode bounds a code in characters.
const maxCode = 4 << 10

var errCode = errors.New("this code is not of this login; copy the whole code, and begin again if you started another login since")

// Sibling is the body of POST /auth/logins/sibling, by which web servers open another login of the same user for the program Agent.
type Sibling struct {
	Token string `json:"session_token"`
	Agent string `json:"agent"`
}

// Handover is the side of the command line: the key of one login.
type Handover struct{ key hpke.PrivateKey }

func kem() hpke.KEM { return hpke.DHKEM(ecdh.X25519()) }

// NewHandover makes a key.
func NewHandover() (Handover, error) {
	key, err := kem().GenerateKey()
	return Handover{key}, err
}

// Key is the public key as the address of the page has it.
func (h Handover) Key() string {
	return base64.RawURLEncoding.EncodeToString(h.key.PublicKey().Bytes())
}

// Open reads a code.
func (h Handover) Open(code string) (api.Secret, error) {
	raw, err := base64.RawURLEncoding.DecodeString(code)
	if err != nil || len(code) > maxCode {
		return "", errCode
	}
	token, err := hpke.Open(h.key, hpke.HKDFSHA256(), hpke.AES128GCM(), []byte(handoverInfo), raw)
	if err != nil {
		return "", errCode
	}
	return api.Secret(token), nil
}

// Seal is the side of the page: it makes the code of a token for the holder of a key.
func Seal(key string, token api.Secret) (string, error) {
	raw, err := base64.RawURLEncoding.DecodeString(key)
	if err != nil {
		return "", errors.New("the key of the command line cannot be read")
	}
	public, err := kem().NewPublicKey(raw)
	if err != nil {
		return "", errors.New("the key of the command line cannot be read")
	}
	sealed, err := hpke.Seal(public, hpke.HKDFSHA256(), hpke.AES128GCM(), []byte(handoverInfo), []byte(token))
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(sealed), nil
}
