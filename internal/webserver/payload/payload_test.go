package payload

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// The vector was computed by an independent implementation.
const (
	vectorEndpoint = "http://127.0.0.1:8090"
	vectorBody     = "ABCDEFGHIJKLMNOP:6VG8Arf/k8BXGla+qEt3YANCQfeMq3VSQf7tIMlXv9yNd8+hANRhf4EFThAuvaEn"
	vectorPlain    = `{"username": "a@b.c", "password": "pw"}`
)

func seal(plain []byte, iv, endpoint string) string {
	block, _ := aes.NewCipher(key([]byte(iv), endpoint)) // the length is right
	pad := aes.BlockSize - len(plain)%aes.BlockSize
	plain = append(bytes.Clone(plain), bytes.Repeat([]byte{byte(pad)}, pad)...)
	out := make([]byte, len(plain))
	cipher.NewCBCEncrypter(block, []byte(iv)).CryptBlocks(out, plain)
	return iv + ":" + base64.StdEncoding.EncodeToString(out)
}

func TestTheVectorOpens(t *testing.T) {
	t.Parallel()
	require.Equal(t, "aHR0cDovLzEyNy4wLjAuMTo4MDkwABCD", string(key([]byte("ABCDEFGHIJKLMNOP"), vectorEndpoint)))
	got, err := Open([]byte(vectorBody), "https://elsewhere", vectorEndpoint)
	require.NoError(t, err)
	require.Equal(t, vectorPlain, string(got))
	require.Equal(t, vectorBody, seal([]byte(vectorPlain), "ABCDEFGHIJKLMNOP", vectorEndpoint))
	_, err = Open([]byte(vectorBody), "http://127.0.0.1:8091/", "http://localhost:8090")
	require.ErrorIs(t, err, ErrUnreadable)
}

func TestWhatIsNotEncodedIsRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", ":", "x", vectorPlain, "ABCDEFGHIJKLMNOP:", "ABCDEFGHIJKLMNOP:AAAA", "ABCDEFGHIJKLMNO:" + vectorBody[17:],
		vectorBody + "AAAA", vectorBody[:len(vectorBody)-4], "ABCDEFGHIJKLMNOP:%%%%"} {
		_, err := Open([]byte(bad), vectorEndpoint)
		require.ErrorIs(t, err, ErrUnreadable, "%q", bad)
	}
	_, err := Open([]byte(seal([]byte("no json"), "ABCDEFGHIJKLMNOP", vectorEndpoint)), vectorEndpoint)
	require.ErrorIs(t, err, ErrUnreadable)
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(vectorBody), vectorEndpoint)
	f.Add([]byte("ABCDEFGHIJKLMNOP:"), "")
	f.Fuzz(func(t *testing.T, body []byte, endpoint string) {
		if plain, err := Open(body, endpoint); err == nil && !json.Valid(plain) {
			t.Fatalf("%q opens as %q", body, plain)
		}
	})
}
