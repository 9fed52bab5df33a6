package chassis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type setClock struct {
	Clock
	now time.Time
}

func (c *setClock) Now() time.Time { return c.now }

func TestAwake(t *testing.T) {
	t.Parallel()
	c := &setClock{now: time.Unix(1000, 0)}
	a := NewAwake(c)
	began := a.Now()
	for range 20 { // it runs, and looks at the clock
		c.now = c.now.Add(500 * time.Millisecond)
		a.note()
	}
	require.Equal(t, 10*time.Second, a.Now().Sub(began))
	require.Zero(t, a.Gaps())
	c.now = c.now.Add(time.Minute) // it is stopped
	require.Less(t, a.Now().Sub(began), 11*time.Second, "who asks first after a gap is told of it")
	require.Greater(t, a.Gaps(), 59*time.Second)
	c.now = c.now.Add(-time.Hour) // a clock that goes back is no gap
	a.note()
	gaps := a.Gaps()
	c.now = c.now.Add(time.Second)
	require.Equal(t, gaps, a.Gaps())
}
