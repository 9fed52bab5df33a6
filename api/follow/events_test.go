package follow_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
	"berth.dev/berth/internal/testkit/address"
)

// Events that are followed go on after the last one when the manager breaks off or refuses for a while: none is missing or comes twice.
func TestFollowEventsOutlivesManagers(t *testing.T) {
	t.Parallel()
	const all = 5
	ways := []string{"break", "end", "refuse", "refuse", "rest"}
	turn := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
		way := ways[min(turn, len(ways)-1)]
		turn++
		if way == "refuse" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		for i := after + 1; i <= all && (way == "rest" || i == after+1); i++ {
			fmt.Fprintf(w, "id: %d\nevent: session_started\ndata: {}\n\n", i)
		}
		if way == "rest" {
			_, _ = io.WriteString(w, "event: server_close\ndata: {}\n\n")
		}
		w.(http.Flusher).Flush()
		if way == "break" {
			panic(http.ErrAbortHandler)
		}
	}))
	defer s.Close()
	o, told := outage(t)
	var seen []string
	for e, err := range follow.Events(t.Context(), clientOf(t, s), api.EventFilter{Session: "x", After: "0"}, o) {
		require.NoError(t, err)
		seen = append(seen, e.ID)
	}
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, seen)
	require.Equal(t, []string{"away", "over", "away", "over"}, told())
}

// The first contact is not waited for, and neither is what will not pass.
func TestFollowEventsFailsAtOnceInTheBeginning(t *testing.T) {
	t.Parallel()
	s := address.Serve(t, http.NotFoundHandler())
	o, told := outage(t)
	one := func() (err error) {
		for _, err = range follow.Events(t.Context(), clientOf(t, s), api.EventFilter{Session: "x", After: "0"}, o) {
		}
		return err
	}
	require.True(t, api.IsNotFound(one()))
	s.Close()
	require.True(t, follow.Unreachable(one()))
	require.Empty(t, told())
}
