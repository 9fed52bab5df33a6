package proxy

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
)

// Grant is the manager's permission for one app proxy to connect to one port of one kernel. An agent's data port obeys nothing
// else. The manager signs one for each target of each circuit; the proxy shows it with every connection that it opens.
type Grant struct {
	Circuit    string // UUID
	Kernel     cluster.KernelID
	Generation int64
	Port       int // inside the kernel
	// Proxy is the name of the app proxy, without NamePrefix.
	Proxy string
	// Issuer is the id of the cluster whose manager signed it.
	Issuer  string
	Expires time.Time // whole seconds; the rest is cut off
}

// The life of a grant, and how much of it is left when the manager sends the next one. An app proxy that loses all managers can
// open connections for at least GrantRenewal more.
const (
	GrantLife    = 24 * time.Hour
	GrantRenewal = GrantLife / 2
)

// HeaderGrant carries a grant (its text form) in a request for a tunnel to an agent's data port.
const HeaderGrant = "Berth-Grant"

// MaxGrant bounds the text of a grant in bytes. It fits into a request's head together with everything else.
const MaxGrant = 1024

// MaxGrantKeys bounds the verification keys that an agent keeps, MaxEnded the ended circuits.
const (
	MaxGrantKeys = 16
	MaxEnded     = 10_000
)

// Revocation refuses the grants of an app proxy whose certificates ended before their time.
type Revocation struct {
	Proxy string `json:"proxy"` // without NamePrefix
	// Until is the end of the last grant that was signed before: grants that expire then or earlier are refused.
	Until time.Time `json:"until"` // whole seconds
}

const (
	// MaxRevocations bounds the revocations that are kept. Each is kept until the grants that it refuses have expired.
	MaxRevocations = 1000
	// RevocationMargin is how much the clocks of two managers may differ.
	RevocationMargin = time.Minute
)

// Revoke refuses what an app proxy was granted until now.
func Revoke(name string, now time.Time) Revocation {
	return Revocation{Proxy: name, Until: now.Add(GrantLife + RevocationMargin + time.Second).Truncate(time.Second).UTC()}
}

// Refuses reports whether a grant was signed before the certificates of its app proxy ended.
func (r Revocation) Refuses(g Grant) bool { return r.Proxy == g.Proxy && !g.Expires.After(r.Until) }

// Over reports whether every grant that r refuses has expired.
func (r Revocation) Over(now time.Time) bool { return now.After(r.Until) }

// MergeRevocations joins two lists: of each app proxy the revocation that refuses most, none that is over, at most
// MaxRevocations of those that end last, in the order of names.
func MergeRevocations(a, b []Revocation, now time.Time) []Revocation {
	latest := map[string]time.Time{}
	for _, r := range slices.Concat(a, b) {
		if !r.Over(now) && r.Until.After(latest[r.Proxy]) {
			latest[r.Proxy] = r.Until
		}
	}
	out := make([]Revocation, 0, len(latest))
	for name, until := range latest {
		out = append(out, Revocation{Proxy: name, Until: until.UTC()})
	}
	slices.SortFunc(out, func(a, b Revocation) int { return b.Until.Compare(a.Until) })
	out = out[:min(len(out), MaxRevocations)]
	slices.SortFunc(out, func(a, b Revocation) int { return strings.Compare(a.Proxy, b.Proxy) })
	return out
}

// grantMark stands before what is signed, so that a signature of anything else is never one of a grant.
const grantMark = "berth.dev circuit grant 1\x00"

const (
	grantVersion = 1
	grantKeyID   = 8
	// grantFixed is the length of the fields of fixed size: version, key, circuit, kernel, generation, port and expiry.
	grantFixed = 1 + grantKeyID + 16 + 16 + 8 + 2 + 8
	maxName    = 255
)

// Errors of ReadGrant and VerifyGrant.
var (
	// ErrNoGrant: the text is no grant at all.
	ErrNoGrant = errors.New("the text is no grant")
	// ErrGrantKey: none of the keys is the one that signed it.
	ErrGrantKey = errors.New("the grant is signed by a key that is not known")
	// ErrGrantSignature: the key is known, and it did not sign this.
	ErrGrantSignature = errors.New("the grant's signature is not valid")
)

// grantKeyOf identifies a verification key inside a grant.
func grantKeyOf(key ed25519.PublicKey) [grantKeyID]byte {
	sum := sha256.Sum256(key)
	return [grantKeyID]byte(sum[:grantKeyID])
}

// SignGrant writes a grant. The text is base64url of, in this order: version (1 byte), the first 8 bytes of the SHA-256 of the
// verification key, circuit and kernel (16 bytes each), generation (8), port (2), expiry in Unix seconds (8), the length of the
// proxy's name (1) and the name, the length of the issuer (1) and the issuer, and the Ed25519 signature (64) of grantMark and
// everything before the signature. Numbers are big-endian. There is exactly one such text for a grant and a key.
func SignGrant(g Grant, key ed25519.PrivateKey) (string, error) {
	circuit, err := uuid.Parse(g.Circuit)
	if err != nil {
		return "", fmt.Errorf("sign a grant: circuit %q: %w", g.Circuit, err)
	}
	kernel, err := uuid.Parse(string(g.Kernel))
	if err != nil {
		return "", fmt.Errorf("sign a grant: kernel %q: %w", g.Kernel, err)
	}
	public, ok := key.Public().(ed25519.PublicKey)
	switch {
	case len(key) != ed25519.PrivateKeySize || !ok:
		return "", errors.New("sign a grant: the key is none of Ed25519")
	case g.Generation < 0 || g.Port < 1 || g.Port > 65535 || g.Proxy == "" || len(g.Proxy) > maxName || len(g.Issuer) > maxName:
		return "", fmt.Errorf("sign a grant: generation %d, port %d, proxy %.300q or issuer %.300q is out of bounds", g.Generation, g.Port,
			g.Proxy, g.Issuer)
	}
	id := grantKeyOf(public)
	b := make([]byte, 0, len(grantMark)+grantFixed+2+len(g.Proxy)+len(g.Issuer)+ed25519.SignatureSize)
	b = append(b, grantMark...)
	b = append(b, grantVersion)
	b = append(b, id[:]...)
	b = append(b, circuit[:]...)
	b = append(b, kernel[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(g.Generation))
	b = binary.BigEndian.AppendUint16(b, uint16(g.Port))
	b = binary.BigEndian.AppendUint64(b, uint64(g.Expires.Unix()))
	b = append(b, byte(len(g.Proxy)))
	b = append(b, g.Proxy...)
	b = append(b, byte(len(g.Issuer)))
	b = append(b, g.Issuer...)
	b = append(b, ed25519.Sign(key, b)...)
	return base64.RawURLEncoding.EncodeToString(b[len(grantMark):]), nil
}

// ReadGrant reads a grant without looking at its signature: for those who carry it, never for those who obey it.
func ReadGrant(text string) (Grant, error) {
	raw, err := grantBytes(text)
	if err != nil {
		return Grant{}, err
	}
	return readGrant(raw)
}

func grantBytes(text string) ([]byte, error) {
	if len(text) > MaxGrant || strings.ContainsAny(text, "\r\n") {
		return nil, ErrNoGrant
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, ErrNoGrant
	}
	return raw, nil
}

func readGrant(raw []byte) (Grant, error) {
	if len(raw) < grantFixed+2+ed25519.SignatureSize || raw[0] != grantVersion {
		return Grant{}, ErrNoGrant
	}
	rest := raw[1+grantKeyID : len(raw)-ed25519.SignatureSize]
	take := func(n int) []byte {
		part := rest[:n]
		rest = rest[n:]
		return part
	}
	g := Grant{Circuit: uuid.UUID(take(16)).String(), Kernel: cluster.KernelID(uuid.UUID(take(16)).String())}
	g.Generation = int64(binary.BigEndian.Uint64(take(8)))
	g.Port = int(binary.BigEndian.Uint16(take(2)))
	g.Expires = time.Unix(int64(binary.BigEndian.Uint64(take(8))), 0).UTC()
	name := func() (string, bool) {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return "", false
		}
		return string(take(1 + int(rest[0]))[1:]), true
	}
	var ok bool
	if g.Proxy, ok = name(); !ok || g.Proxy == "" {
		return Grant{}, ErrNoGrant
	}
	if g.Issuer, ok = name(); !ok || len(rest) != 0 {
		return Grant{}, ErrNoGrant
	}
	return g, nil
}

// VerifyGrant reads a grant that one of the keys signed. It looks at nothing else: the caller compares circuit, kernel,
// generation, port, proxy, issuer and time.
func VerifyGrant(text string, keys []ed25519.PublicKey) (Grant, error) {
	raw, err := grantBytes(text)
	if err != nil {
		return Grant{}, err
	}
	g, err := readGrant(raw)
	if err != nil {
		return Grant{}, err
	}
	id := [grantKeyID]byte(raw[1 : 1+grantKeyID])
	body, signature := raw[:len(raw)-ed25519.SignatureSize], raw[len(raw)-ed25519.SignatureSize:]
	signed := append([]byte(grantMark), body...)
	found := false
	for _, key := range keys {
		if len(key) != ed25519.PublicKeySize || grantKeyOf(key) != id {
			continue
		}
		if ed25519.Verify(key, signed, signature) {
			return g, nil
		}
		found = true
	}
	if found {
		return Grant{}, ErrGrantSignature
	}
	return Grant{}, ErrGrantKey
}
