package passkey_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/tenancy/passkey"
)

// device is an authenticator with one passkey, and the browser in front of it.
type device struct {
	t       *testing.T
	key     *ecdsa.PrivateKey
	id      []byte
	handle  []byte
	counter uint32
	// What the browser says, and whether the device checked its user.
	origin, rp string
	verified   bool
}

func newDevice(t *testing.T) *device {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	id := make([]byte, 32)
	_, _ = rand.Read(id)
	return &device{t: t, key: key, id: id, counter: 1, origin: origin, rp: "berth.example.org", verified: true}
}

// options are those parts that a browser reads.
type options struct {
	PublicKey struct {
		Challenge string `json:"challenge"`
		RPID      string `json:"rpId"`
		User      struct {
			ID string `json:"id"`
		} `json:"user"`
		UserVerification string `json:"userVerification"`
	} `json:"publicKey"`
}

func (d *device) read(c passkey.Ceremony) options {
	d.t.Helper()
	var o options
	require.NoError(d.t, json.Unmarshal(c.Options, &o))
	require.NotEmpty(d.t, o.PublicKey.Challenge)
	return o
}

func b64(raw []byte) string { return base64.RawURLEncoding.EncodeToString(raw) }

func (d *device) client(kind, challenge string) []byte {
	raw, err := json.Marshal(map[string]any{"type": kind, "challenge": challenge, "origin": d.origin, "crossOrigin": false})
	require.NoError(d.t, err)
	return raw
}

// data is what the device says of itself.
func (d *device) data(attested []byte) []byte {
	sum := sha256.Sum256([]byte(d.rp))
	flags := byte(0x01)
	if d.verified {
		flags |= 0x04
	}
	if attested != nil {
		flags |= 0x40
	}
	out := append(sum[:], flags)
	out = binary.BigEndian.AppendUint32(out, d.counter)
	return append(out, attested...)
}

// enrol answers a ceremony of enrolment.
func (d *device) enrol(c passkey.Ceremony) []byte {
	d.t.Helper()
	o := d.read(c)
	handle, err := base64.RawURLEncoding.DecodeString(o.PublicKey.User.ID)
	require.NoError(d.t, err)
	d.handle = handle
	point, err := d.key.PublicKey.Bytes() // 4, x, y
	require.NoError(d.t, err)
	public, err := cbor.Marshal(map[int]any{1: 2, 3: -7, -1: 1, -2: point[1:33], -3: point[33:]})
	require.NoError(d.t, err)
	attested := append(make([]byte, 16), byte(len(d.id)>>8), byte(len(d.id)))
	attested = append(append(attested, d.id...), public...)
	object, err := cbor.Marshal(map[string]any{"fmt": "none", "attStmt": map[string]any{}, "authData": d.data(attested)})
	require.NoError(d.t, err)
	return d.answer(map[string]any{"attestationObject": b64(object),
		"clientDataJSON": b64(d.client("webauthn.create", o.PublicKey.Challenge))})
}

// login answers a ceremony of login.
func (d *device) login(c passkey.Ceremony) []byte {
	d.t.Helper()
	d.counter++
	client := d.client("webauthn.get", d.read(c).PublicKey.Challenge)
	data := d.data(nil)
	clientSum := sha256.Sum256(client)
	sum := sha256.Sum256(append(append([]byte{}, data...), clientSum[:]...))
	signature, err := ecdsa.SignASN1(rand.Reader, d.key, sum[:])
	require.NoError(d.t, err)
	return d.answer(map[string]any{"authenticatorData": b64(data), "clientDataJSON": b64(client), "signature": b64(signature),
		"userHandle": b64(d.handle)})
}

func (d *device) answer(response map[string]any) []byte {
	raw, err := json.Marshal(map[string]any{"id": b64(d.id), "rawId": b64(d.id), "type": "public-key", "response": response})
	require.NoError(d.t, err)
	return raw
}
