package transfer_test

import (
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// claimsOf reads a token without looking at its signature.
func claimsOf(t testing.TB, tok string) jwt.MapClaims {
	t.Helper()
	c := jwt.MapClaims{}
	_, _, err := jwt.NewParser().ParseUnverified(tok, c)
	require.NoError(t, err)
	return c
}

func sessionOf(t testing.TB, tok string) string {
	t.Helper()
	s, _ := claimsOf(t, tok)["session"].(string)
	return s
}

// unsigned is the token with the algorithm "none".
func unsigned(t testing.TB, tok string) string {
	t.Helper()
	out, err := jwt.NewWithClaims(jwt.SigningMethodNone, claimsOf(t, tok)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	require.NoError(t, err)
	return out
}

// resign changes one claim with the right key, as only a proxy could.
func resign(t testing.TB, now time.Time, tok, claim string, value any) string {
	t.Helper()
	c := claimsOf(t, tok)
	c[claim] = value
	c["exp"] = now.Add(time.Hour).Unix()
	out, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString([]byte(key))
	require.NoError(t, err)
	return out
}

func TestClaims(t *testing.T) {
	r := newRig(t)
	r.write("f", "content")
	c := claimsOf(t, r.uploadToken("./d//x", 5))
	require.Equal(t, "upload", c["op"])
	require.Equal(t, "volume1", c["volume"])
	require.Equal(t, folder.String(), c["vfid"])
	require.Equal(t, "d/x", c["relpath"])
	require.EqualValues(t, 5, c["size"])
	for _, k := range []string{"session", "exp", "jti"} {
		require.NotEmpty(t, c[k], k)
	}
	c = claimsOf(t, r.downloadToken("f"))
	require.Equal(t, "download", c["op"])
	require.Equal(t, "f", c["relpath"])
	require.NotEqual(t, c["jti"], claimsOf(t, r.downloadToken("f"))["jti"])
	// Another algorithm with the same key is not taken.
	other, err := jwt.NewWithClaims(jwt.SigningMethodHS512, c).SignedString([]byte(key))
	require.NoError(t, err)
	require.Equal(t, 400, r.do("GET", "/download", token(other), nil, nil).status)
	delete(c, "exp")
	forever, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString([]byte(key))
	require.NoError(t, err)
	require.Equal(t, 400, r.do("GET", "/download", token(forever), nil, nil).status)
}
