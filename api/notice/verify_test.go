package notice_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/notice"
)

// The signature was computed by openssl: printf '%s' '1790000000.{"id":"1","kind":"ended","at":"2026-09-21T14:13:20Z","text":"x"}' |
// openssl dgst -sha256 -hmac bwhs_example
func TestOnlyGenuineWebhooksAreRead(t *testing.T) {
	t.Parallel()
	const body = `{"id":"1","kind":"ended","at":"2026-09-21T14:13:20Z","text":"x"}`
	const genuine = "t=1790000000,v1=76c8136db2a60ac61642f9af9d2f4a6489e66f697cbed459ad1c0e4d9a070632"
	now := time.Unix(1790000000, 0)
	m, err := notice.Verify("bwhs_example", genuine, []byte(body), now.Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, "ended", m.Kind)
	require.Nil(t, m.Subject)
	for name, forged := range map[string]func() (string, string, string, time.Time){
		"another secret": func() (string, string, string, time.Time) { return "other", genuine, body, now },
		"another body":   func() (string, string, string, time.Time) { return "bwhs_example", genuine, body + " ", now },
		"another time": func() (string, string, string, time.Time) {
			return "bwhs_example", "t=1790000001" + genuine[len("t=1790000000"):], body, now
		},
		"late": func() (string, string, string, time.Time) {
			return "bwhs_example", genuine, body, now.Add(6 * time.Minute)
		},
		"early": func() (string, string, string, time.Time) {
			return "bwhs_example", genuine, body, now.Add(-6 * time.Minute)
		},
		"none":       func() (string, string, string, time.Time) { return "bwhs_example", "", body, now },
		"no time":    func() (string, string, string, time.Time) { return "bwhs_example", "t=x,v1=00", body, now },
		"no hex":     func() (string, string, string, time.Time) { return "bwhs_example", "t=1790000000,v1=xyz", body, now },
		"other form": func() (string, string, string, time.Time) { return "bwhs_example", "v1=00,t=1790000000", body, now },
	} {
		secret, signature, body, at := forged()
		_, err := notice.Verify(secret, signature, []byte(body), at)
		require.ErrorIs(t, err, notice.ErrForged, name)
	}
}
