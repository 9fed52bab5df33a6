package testkit_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
	"berth.dev/berth/internal/wire/run"
)

// TestAnyManagerAnswersForAnyAgent: an agent is connected to one manager, and clients ask the other one. When the manager that
// holds the agent stops, the agent goes to the other one, of which nobody but a manager has told it.
func TestAnyManagerAnswersForAnyAgent(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Managers: 2})
	first, second := c.Managers[0], c.Managers[1]
	id := c.Create(request.Session{Name: "faraway"})
	kernel := c.Running(id).MainKernel().ID
	c.Agents[0].Engine.Print(kernel, "a line of the log\n")
	_, err := c.Agents[0].Engine.Listen(kernel, 9000, run.AppProtocol("tcp"), fake.Echo)
	require.NoError(t, err)
	c.Until("both managers know each other", func() bool { return len(first.AgentPorts()) == 2 && len(second.AgentPorts()) == 2 })

	// works tries an execution, the log, and a byte stream that is open when it returns.
	works := func(m *testkit.Manager) net.Conn {
		t.Helper()
		client := m.Client()
		result, err := client.Poll(t.Context(), "faraway", "", api.Execute{Mode: "query", Code: "print(6*7)"})
		require.NoError(t, err)
		require.Equal(t, []api.ConsoleItem{{"stdout", "42\n"}}, result.Console)
		log, err := client.Logs(t.Context(), "faraway", "")
		require.NoError(t, err)
		require.Contains(t, log, "a line of the log")
		conn, err := client.DialApp(t.Context(), "faraway", "port-9000", 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		echoes(t, conn, "hello")
		return conn
	}
	require.True(t, first.Holds(c.Agents[0].ID()))
	require.False(t, second.Holds(c.Agents[0].ID()))
	near, far := works(first), works(second)
	echoes(t, near, "still open")
	echoes(t, far, "still open too")

	first.Stop()
	_, err = far.Read(make([]byte, 1))
	require.Error(t, err, "the stream ends with the manager that held the agent")
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
	c.Until("the agent is with the other manager", func() bool { return second.Holds(c.Agents[0].ID()) })
	works(second)

	first.Start()
	c.Until("both managers know each other", func() bool { return len(first.AgentPorts()) == 2 && len(second.AgentPorts()) == 2 })
	require.True(t, second.Holds(c.Agents[0].ID()), "the agent stays where it is")
	works(first)
	works(second)
	c.Destroy(id, false)
	c.Ended(id)
	c.Clean()
}

// TestAgentOfAManagerThatIsGone: a request for an agent whose manager died is told so with a reason, and is not held for long.
func TestAgentOfAManagerThatIsGone(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Managers: 2})
	id := c.Create(request.Session{Name: "lost"})
	c.Running(id)
	second := c.Managers[1]
	c.Agents[0].Stop()
	c.Managers[0].Stop()
	c.Agents[0].Configure(c.Managers...) // what it was told is in its memory alone
	_, err := second.Client().Poll(t.Context(), "lost", "", api.Execute{Mode: "query", Code: "print(1)"})
	require.ErrorContains(t, err, "is connected to manager m0, which does not answer")
	c.Agents[0].Start()
	c.Until("the agent is with the other manager", func() bool { return second.Holds(c.Agents[0].ID()) })
	result, err := second.Client().Poll(t.Context(), "lost", "", api.Execute{Mode: "query", Code: "print(1)"})
	require.NoError(t, err)
	require.Equal(t, []api.ConsoleItem{{"stdout", "1\n"}}, result.Console)
}

// echoes sends a text to an app that returns what it gets.
func echoes(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(testkit.Patience)))
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	got := make([]byte, len(text))
	_, err = io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}
