package signature

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// The vectors were computed independently from the description of the wire.
func TestSignatureVectors(t *testing.T) {
	t.Parallel()
	const (
		secret = "sk-test-vector-0123456789abcdefghijklmno"
		host   = "127.0.0.1:8081"
		date   = "2026-11-20T08:21:13.659045+00:00"
	)
	now := time.Date(2026, 11, 20, 8, 22, 0, 0, time.UTC)
	for _, v := range []struct{ method, target, contentType, want string }{
		{"GET", "/session/demo?owner_access_key=AKX", "text/plain", "dc8d4c44020c22260885ee942e3b5f8caf0c20e789a1e7d91b667fbb6248541f"},
		{"POST", "/admin/gql", "application/json", "ee3d16e531625aa2dc7783b9446a475959081ac8d1205d418966b6ece02d811a"},
		{"GET", "/stream/session/demo/execute", "", "d66b6e64ba72f48847477289eff30d5388124851649e202258d12e1541815d6f"},
		{"POST", "/session/demo/upload", "multipart/form-data; boundary=x", "d11657ea792e84bdce5f41bf731faf87d228467c140736a3fc08c70ee4ac3744"},
	} {
		r := httptest.NewRequest(v.method, "http://"+host+v.target, nil)
		r.RequestURI = v.target
		r.Header.Set("Date", date)
		r.Header.Set("X-BackendAI-Version", "v8.20240915")
		if v.contentType != "" {
			r.Header.Set("Content-Type", v.contentType)
		}
		s, _, err := partsOf(r, now)
		require.NoError(t, err)
		require.Equal(t, v.want, hex.EncodeToString(s.signature(hashes["sha256"], secret)), "%s %s", v.method, v.target)
	}
}

func TestSignatureCoversTheBodyOfOldVersionsOnly(t *testing.T) {
	t.Parallel()
	s := parts{
		Method: "POST", Target: "/", Host: "h", Day: "20260101", VersionHeader: "x-sorna-version", Version: "v3.20181215",
		ContentType: "application/json",
	}
	with := s
	with.Body = []byte("x")
	require.NotEqual(t, s.signature(hashes["sha256"], "k"), with.signature(hashes["sha256"], "k"))
	with.ContentType, s.ContentType = "multipart/form-data", "multipart/form-data"
	require.Equal(t, s.signature(hashes["sha256"], "k"), with.signature(hashes["sha256"], "k"))
	with.Version, s.Version = "v4.20181215", "v4.20181215"
	require.Equal(t, s.signature(hashes["sha256"], "k"), with.signature(hashes["sha256"], "k"))
}

func TestDates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ day, utc string }{
		"2026-11-20T08:21:13.659045+00:00":  {"20261120", "2026-11-20T08:21:13Z"},
		"2026-11-20T08:21:13+00:00":         {"20261120", "2026-11-20T08:21:13Z"},
		"2026-11-20T08:21:13.659Z":          {"20261120", "2026-11-20T08:21:13Z"},
		"2026-11-21T01:21:13+09:00":         {"20261121", "2026-11-20T16:21:13Z"},
		"2026-11-20T08:21:13":               {"20261120", "2026-11-20T08:21:13Z"},
		"2026-11-20 08:21:13.1":             {"20261120", "2026-11-20T08:21:13Z"},
		"20261120T082113Z":                  {"20261120", "2026-11-20T08:21:13Z"},
		"Fri, 20 Nov 2026 08:21:13 GMT":     {"20261120", "2026-11-20T08:21:13Z"},
		"Fri, 20 Nov 2026 08:21:13 UTC":     {"20261120", "2026-11-20T08:21:13Z"},
		"Sat, 21 Nov 2026 01:21:13 +0900":   {"20261121", "2026-11-20T16:21:13Z"},
		"Friday, 20-Nov-26 08:21:13 GMT":    {"20261120", "2026-11-20T08:21:13Z"},
		"Fri Nov 20 08:21:13 2026":          {"20261120", "2026-11-20T08:21:13Z"},
		" 2026-11-20T08:21:13+00:00 ":       {"20261120", "2026-11-20T08:21:13Z"},
		"2026-11-20T23:30:00.000001-05:00":  {"20261120", "2026-11-21T04:30:00Z"},
		"2026-11-20T08:21:13.659045+0000":   {"20261120", "2026-11-20T08:21:13Z"},
		"Fri, 20 Nov 2026 08:21:13 Zork":    {},
		"yesterday":                         {},
		"":                                  {},
		strings.Repeat("2026-11-20T08", 10): {},
	} {
		at, ok := parseDate(text)
		if want.day == "" {
			require.False(t, ok, text)
			continue
		}
		require.True(t, ok, text)
		require.Equal(t, want.day, at.Format("20060102"), text)
		require.Equal(t, want.utc, at.UTC().Truncate(time.Second).Format(time.RFC3339), text)
	}
}

func TestSkewAndMissingParts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		head http.Header
		ok   bool
	}{
		{"now", http.Header{"Date": {"2026-11-20T08:00:00+00:00"}, "X-Backendai-Version": {"v8.20240915"}}, true},
		{"legacy names", http.Header{"X-Sorna-Date": {"2026-11-20T08:00:00+00:00"}, "X-Sorna-Version": {"v4.20181215"}}, true},
		{"browser's date", http.Header{"X-Backendai-Date": {"2026-11-20T08:00:00.000Z"}, "X-Backendai-Version": {"v8.20240915"}}, true},
		{"14:59 late", http.Header{"Date": {"2026-11-20T07:45:01+00:00"}, "X-Backendai-Version": {"v8.20240915"}}, true},
		{"15:00 late", http.Header{"Date": {"2026-11-20T07:45:00+00:00"}, "X-Backendai-Version": {"v8.20240915"}}, false},
		{"15:00 early", http.Header{"Date": {"2026-11-20T08:15:00+00:00"}, "X-Backendai-Version": {"v8.20240915"}}, false},
		{"no version", http.Header{"Date": {"2026-11-20T08:00:00+00:00"}}, false},
		{"no date", http.Header{"X-Backendai-Version": {"v8.20240915"}}, false},
		{"bad date", http.Header{"Date": {"soon"}, "X-Backendai-Version": {"v8.20240915"}}, false},
	} {
		r := httptest.NewRequest("GET", "/auth", nil)
		r.Header = c.head
		_, _, err := partsOf(r, now)
		if c.ok {
			require.NoError(t, err, c.name)
			continue
		}
		require.Equal(t, ReasonInvalid, fault.ReasonOf(err), c.name)
		require.NotEmpty(t, fault.NextOf(err), c.name)
	}
}

func TestAuthorizationHeader(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"BackendAI signMethod=HMAC-SHA256, credential=AK:00ff",
		"Sorna credential=AK:00ff,signMethod=hmac-sha256",
		"BackendAI   signMethod = HMAC-SHA512 ,  credential = AK:00ff , more=x",
	} {
		c, err := parseAuthorization(good)
		require.NoError(t, err, good)
		require.EqualValues(t, "AK", c.AccessKey)
		require.Equal(t, []byte{0, 255}, c.Signature)
	}
	for _, bad := range []string{
		"", "BackendAI", "Bearer x", "BackendAI ", "backendai signMethod=HMAC-SHA256, credential=AK:00",
		"BackendAI signMethod=HMAC-SHA256", "BackendAI credential=AK:00", "BackendAI signMethod=SHA256, credential=AK:00",
		"BackendAI signMethod=HMAC-CRC, credential=AK:00", "BackendAI signMethod=HMAC-SHA256, credential=AK",
		"BackendAI signMethod=HMAC-SHA256, credential=:00", "BackendAI signMethod=HMAC-SHA256, credential=AK:zz",
		"BackendAI signMethod=HMAC-SHA256, credential=" + strings.Repeat("A", 129) + ":00", "BackendAI " + strings.Repeat("a=b,", 1000),
	} {
		_, err := parseAuthorization(bad)
		require.Equal(t, ReasonInvalid, fault.ReasonOf(err), bad)
	}
}

func FuzzParseAuthorization(f *testing.F) {
	f.Add("BackendAI signMethod=HMAC-SHA256, credential=AK:00ff")
	f.Add("Sorna ,,=,=")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseAuthorization(text)
		if err == nil && (c.AccessKey == "" || c.newHash == nil) {
			t.Fatalf("accepted %q without a key or a hash", text)
		}
		if err != nil && fault.KindOf(err) != fault.Invalid {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func FuzzParseDate(f *testing.F) {
	f.Add("2026-11-20T08:21:13.659045+00:00")
	f.Add("Fri, 20 Nov 2026 08:21:13 GMT")
	f.Fuzz(func(t *testing.T, text string) {
		if at, ok := parseDate(text); ok && len(at.Format("20060102")) < 8 {
			t.Fatalf("%q: day %q", text, at.Format("20060102"))
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	r := httptest.NewRequest("POST", "http://127.0.0.1:8081/session/demo", nil)
	r.Header.Set("Date", "2026-11-20T08:21:13.659045+00:00")
	r.Header.Set("X-BackendAI-Version", "v8.20240915")
	r.Header.Set("Content-Type", "application/json")
	now := time.Date(2026, 11, 20, 8, 22, 0, 0, time.UTC)
	b.ReportAllocs()
	for b.Loop() {
		s, _, err := partsOf(r, now)
		if err != nil {
			b.Fatal(err)
		}
		s.signature(hashes["sha256"], "secret")
	}
}

func FuzzExtension(f *testing.F) {
	f.Add("nonce=000102030405060708090a0b0c0d0e0f, body=stream, mac=00ff")
	f.Add(",=,mac=,body=")
	f.Fuzz(func(t *testing.T, text string) {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header[Extension] = []string{text}
		e, err := extensionOf(r, "2026-11-20T08:21:13+00:00")
		switch {
		case err != nil && fault.KindOf(err) != fault.Invalid:
			t.Fatalf("%q: %v", text, err)
		case err == nil && (e == nil || len(e.nonce) != 32 || len(e.mac) == 0 || e.body == nil && e.bodyText != stream):
			t.Fatalf("accepted %q", text)
		}
	})
}
