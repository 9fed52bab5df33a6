package membership

import (
	"crypto/x509"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Members that joined together renew at different times, all of them well before the end.
func TestRenewalsAreSpread(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	life := 360 * 24 * time.Hour
	days := map[int]int{}
	for i := range 1000 {
		cert := &x509.Certificate{NotBefore: begin, NotAfter: begin.Add(life), Signature: binary.BigEndian.AppendUint64(nil, uint64(i))}
		at := renewAt(cert)
		require.Equal(t, at, renewAt(cert), "it stays")
		require.False(t, at.Before(begin.Add(life*2/3)), "%s", at)
		require.False(t, at.After(begin.Add(life*3/4)), "%s", at)
		days[int(at.Sub(begin).Hours()/24)]++
	}
	require.Len(t, days, 30)
	for day, n := range days {
		require.Less(t, n, 100, "day %d", day)
	}
}
