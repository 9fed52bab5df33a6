package nvmlhelper

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/testkit/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake are cards that a test makes up.
type fake struct {
	look   func() (nvmlwire.Facts, error)
	sample func() (nvmlwire.Sample, error)
	events chan nvmlwire.Event
}

func (f fake) Look() (nvmlwire.Facts, error)    { return f.look() }
func (f fake) Sample() (nvmlwire.Sample, error) { return f.sample() }
func (f fake) Watch(ctx context.Context, tell func(nvmlwire.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-f.events:
			tell(e)
		}
	}
}

func wellFake() fake {
	return fake{
		look: func() (nvmlwire.Facts, error) {
			return nvmlwire.Facts{Driver: "580.65.06", GPUs: []nvmlwire.GPU{{UUID: "GPU-a"}}}, nil
		},
		sample: func() (nvmlwire.Sample, error) { return nvmlwire.Sample{Uses: []nvmlwire.Use{{UUID: "GPU-a"}}}, nil },
		events: make(chan nvmlwire.Event),
	}
}

// talk is one run of serve.
type talk struct {
	t     *testing.T
	in    *io.PipeWriter
	out   chan nvmlwire.Message
	ended chan error
	errs  *bytes.Buffer // read it after the end
}

func start(t *testing.T, c cards) *talk {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	k := &talk{t: t, in: inW, out: make(chan nvmlwire.Message), ended: make(chan error, 1), errs: &bytes.Buffer{}}
	go func() {
		k.ended <- serve(context.Background(), c, inR, outW, k.errs)
		outW.Close()
		inR.Close()
	}()
	go func() {
		defer close(k.out)
		for lines := bufio.NewScanner(outR); lines.Scan(); {
			var m nvmlwire.Message
			if json.Unmarshal(lines.Bytes(), &m) == nil {
				k.out <- m
			}
		}
	}()
	require.Equal(t, nvmlwire.Message{Version: nvmlwire.Version}, await.Value(t, k.out))
	return k
}

func (k *talk) say(line string) {
	k.t.Helper()
	await.Return(k.t, func() { fmt.Fprintln(k.in, line) })
}

func (k *talk) end() error {
	k.t.Helper()
	k.in.Close()
	err := await.Value(k.t, k.ended)
	await.Return(k.t, func() {
		for range k.out { // the rest
		}
	})
	return err
}

func TestServeAnswersUntilItsInputEnds(t *testing.T) {
	t.Parallel()
	c := wellFake()
	k := start(t, c)
	k.say(`{"id":1,"method":"look"}`)
	m := await.Value(t, k.out)
	require.EqualValues(t, 1, m.ID)
	require.Equal(t, "GPU-a", m.Facts.GPUs[0].UUID)
	k.say(`{"id":2,"method":"sample"}`)
	m = await.Value(t, k.out)
	require.EqualValues(t, 2, m.ID)
	require.Equal(t, "GPU-a", m.Sample.Uses[0].UUID)
	k.say(`{"id":3,"method":"reset"}`)
	require.Contains(t, await.Value(t, k.out).Error, `knows no method "reset"; next: install`)
	c.events <- nvmlwire.Event{UUID: "GPU-a", XID: 79}
	require.Equal(t, nvmlwire.Message{Event: &nvmlwire.Event{UUID: "GPU-a", XID: 79}}, await.Value(t, k.out))
	require.NoError(t, k.end())
}

func TestServeTellsFailures(t *testing.T) {
	t.Parallel()
	c := wellFake()
	c.look = func() (nvmlwire.Facts, error) { return nvmlwire.Facts{}, errors.New("the driver is not loaded") }
	k := start(t, c)
	k.say(`{"id":1,"method":"look"}`)
	require.Equal(t, nvmlwire.Message{ID: 1, Error: "the driver is not loaded"}, await.Value(t, k.out))
	k.say(`{"id":2,"method":"sample"}`)
	require.NotNil(t, await.Value(t, k.out).Sample, "one failure is not the end")
	require.NoError(t, k.end())
}

func TestServeEndsWhereANewProcessIsNeeded(t *testing.T) {
	t.Parallel()
	c := wellFake()
	c.look = func() (nvmlwire.Facts, error) { return nvmlwire.Facts{}, fmt.Errorf("count: %w", errStale) }
	k := start(t, c)
	k.say(`{"id":1,"method":"look"}`)
	require.Equal(t, "count: a new process is needed", await.Value(t, k.out).Error, "the request is answered first")
	require.ErrorIs(t, await.Value(t, k.ended), errStale)
}

func TestServeRefusesWhatIsNoRequest(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"hello", `{"id":0,"method":"look"}`, `{"id":1,"method":"look","more":1}`} {
		k := start(t, wellFake())
		k.say(line)
		require.ErrorContains(t, await.Value(t, k.ended), "is no request")
	}
	k := start(t, wellFake())
	await.Return(t, func() { _, _ = io.Copy(k.in, strings.NewReader(strings.Repeat("x", maxRequest+1))) })
	require.ErrorIs(t, await.Value(t, k.ended), bufio.ErrTooLong)
}

func TestServeEndsThoughTheDriverHangs(t *testing.T) {
	t.Parallel()
	c, asked, free := wellFake(), make(chan struct{}), make(chan struct{})
	c.look = func() (nvmlwire.Facts, error) { close(asked); <-free; return nvmlwire.Facts{}, nil }
	k := start(t, c)
	k.say(`{"id":1,"method":"look"}`)
	await.Value(t, asked)
	// Requests beyond those that may wait are refused, and the end of the input is still seen.
	for id := 2; id <= maxWaiting+1; id++ {
		k.say(fmt.Sprintf(`{"id":%d,"method":"sample"}`, id))
	}
	k.say(`{"id":1000,"method":"sample"}`)
	m := await.Value(t, k.out)
	require.EqualValues(t, 1000, m.ID)
	require.Contains(t, m.Error, "requests wait for NVIDIA's library")
	require.NoError(t, k.end())
	close(free)
}

func TestAnAnswerThatIsTooLongIsAnError(t *testing.T) {
	t.Parallel()
	c := wellFake()
	c.look = func() (nvmlwire.Facts, error) {
		return nvmlwire.Facts{Driver: strings.Repeat("x", nvmlwire.MaxLine)}, nil
	}
	k := start(t, c)
	k.say(`{"id":1,"method":"look"}`)
	m := await.Value(t, k.out)
	require.EqualValues(t, 1, m.ID)
	require.Contains(t, m.Error, "at most 4194304 can be sent")
	require.NoError(t, k.end())
}

func TestProgram(t *testing.T) {
	t.Parallel()
	call := func(c cards, args ...string) (status int, out, errs string) {
		var o, e bytes.Buffer
		status = run(c, args, strings.NewReader(""), &o, &e)
		return status, o.String(), e.String()
	}
	status, out, _ := call(wellFake(), "look")
	require.Zero(t, status)
	require.Contains(t, out, `"uuid": "GPU-a"`)
	status, out, _ = call(wellFake(), "sample")
	require.Zero(t, status)
	require.Contains(t, out, `"uuid": "GPU-a"`)
	status, out, _ = call(wellFake(), "version")
	require.Zero(t, status)
	require.Contains(t, out, fmt.Sprintf("berth-nvml dev, messages of version %d", nvmlwire.Version))
	status, out, _ = call(wellFake())
	require.Zero(t, status)
	require.Equal(t, fmt.Sprintf("{\"version\":%d}\n", nvmlwire.Version), out)
	status, out, _ = call(wellFake(), "help")
	require.Zero(t, status)
	require.Equal(t, usage, out)
	for _, args := range [][]string{{"reset"}, {"look", "now"}} {
		status, out, errs := call(wellFake(), args...)
		require.Equal(t, 2, status)
		require.Empty(t, out)
		require.Equal(t, usage, errs)
	}
	broken := wellFake()
	broken.look = func() (nvmlwire.Facts, error) { return nvmlwire.Facts{}, errors.New("no driver") }
	status, out, errs := call(broken, "look")
	require.Equal(t, 1, status)
	require.Empty(t, out)
	require.Equal(t, "no driver\n", errs)
}
