package webterm_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// sender is the page's half of typing: no more than a window ahead of what the shell has taken, and after a break from there.
type sender struct {
	*tab
	all                             []byte // that is to be typed, or was
	sent, typed, window, read, told int
	known                           bool
}

func (s *site) sender(query string, all []byte) *sender {
	p := &sender{tab: s.tab(query), all: all, window: 1 << 40}
	var begin struct {
		Window int
		Typed  *int
	}
	require.NoError(s.t, json.Unmarshal([]byte(p.last), &begin))
	if begin.Window > 0 {
		p.window = begin.Window
	}
	if p.known = begin.Typed != nil; p.known {
		p.typed = *begin.Typed
		p.sent = p.typed
	}
	require.NoError(s.t, p.pump())
	return p
}

func (p *sender) push(b []byte) {
	p.t.Helper()
	p.all = append(p.all, b...)
	require.NoError(p.t, p.pump())
}

func (p *sender) pump() error {
	for p.sent < len(p.all) && p.sent-p.typed < p.window {
		n := min(32<<10, len(p.all)-p.sent, p.window-(p.sent-p.typed))
		if err := p.c.Write(p.ctx, websocket.MessageBinary, p.all[p.sent:p.sent+n]); err != nil {
			return err
		}
		p.sent += n
	}
	return nil
}

// step reads a message and does what the page does.
func (p *sender) step() error {
	kind, b, err := p.c.Read(p.ctx)
	if err != nil {
		return err
	}
	if kind == websocket.MessageText {
		var w struct{ Typed int }
		require.NoError(p.t, json.Unmarshal(b, &w))
		p.typed = max(p.typed, w.Typed)
		return p.pump()
	}
	if n := p.seen.Len(); n > 64<<10 {
		end := p.seen.String()[n-100:]
		p.seen.Reset()
		p.seen.WriteString(end)
	}
	p.seen.Write(b)
	if p.read += len(b); p.read-p.told < 512<<10 {
		return nil
	}
	p.told = p.read
	return p.c.Write(p.ctx, websocket.MessageText, []byte(`{"read":`+strconv.Itoa(p.read)+`}`))
}

func (p *sender) shows(text string) {
	p.t.Helper()
	for !strings.Contains(p.seen.String(), text) {
		require.NoError(p.t, p.step(), "%d bytes of %d sent, %d taken", p.sent, len(p.all), p.typed)
	}
}

// lines is a text whose lines have width bytes.
func lines(size, width int) []byte {
	b := make([]byte, size)
	for i := range b {
		if b[i] = 'a' + byte(i/width+i)%26; i%width == width-1 || i == size-1 {
			b[i] = '\n'
		}
	}
	return b
}

// TestPasteArrivesWhole: more than the terminal, its program, the connection and the page hold together, echoed or not.
func TestPasteArrivesWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode string
		size int
	}{"raw": {"raw -echo", 8 << 20}, "lines": {"-echo", 64 << 20}, "lines, echoed": {"echo", 8 << 20}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			file, all := filepath.Join(t.TempDir(), "file"), lines(c.size, 4000)
			p := s.sender("?page=one", nil)
			p.push([]byte("stty " + c.mode + "; echo ready-$((1)); head -c " + strconv.Itoa(len(all)) + " >" + file +
				"; stty sane; echo done-$((1))\n"))
			p.shows("ready-1")
			p.push(all)
			p.shows("done-1")
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(all, got), "%d bytes of %d", len(got), len(all))
		})
	}
}

// TestPasteOutlivesBreaks: every byte is typed once, wherever the connection breaks and whether its end is seen or not.
func TestPasteOutlivesBreaks(t *testing.T) {
	t.Parallel()
	s := start(t)
	file, all := filepath.Join(t.TempDir(), "file"), lines(4<<20, 100)
	p := s.sender("?page=one", nil)
	require.False(t, p.known)
	p.push([]byte("stty raw -echo; echo ready-$((1)); head -c " + strconv.Itoa(len(all)) + " >" + file + "; stty sane; echo done-$((1))\n"))
	p.shows("ready-1")
	p.push(all)
	for n := 0; p.typed < len(all)-512<<10; n++ {
		for from := p.typed; p.typed < from+100<<10; {
			require.NoError(t, p.step())
		}
		if n%2 == 0 {
			p.c.CloseNow()
		}
		p = s.sender("?page=one", p.all)
		require.True(t, p.known)
	}
	other := s.sender("?page=other", nil)
	require.False(t, other.known)
	p.shows("done-1")
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(all, got), "%d bytes of %d", len(got), len(all))

	// Another shell has nothing to do with what was typed into the one before.
	p.push([]byte("exit\n"))
	for p.step() == nil {
	}
	require.False(t, s.sender("?page=one", nil).known)
}

// TestUnreadPaste: a program that reads nothing costs neither the connection nor its output; the page can take back what waits.
func TestUnreadPaste(t *testing.T) {
	t.Parallel()
	s := start(t)
	p := s.sender("?page=one", nil)
	require.Positive(t, p.window)
	p.push([]byte("stty raw -echo; echo ready-$((1)); (n=0; while echo tick-$n.; do n=$((n+1)); sleep 0.01; done) & exec sleep 600\n"))
	p.shows("ready-1")
	p.push(bytes.Repeat([]byte("x"), 8<<20))
	require.Less(t, p.sent, 1<<20)
	p.shows("tick-200.")
	require.Less(t, p.sent, 1<<20)
	p.says(`{"rows":12,"cols":34}`) // listening goes on
	p.all = p.all[:p.sent]
	p.says(`{"drop":true}`)
	for p.typed < p.sent {
		require.NoError(t, p.step())
	}
	// Taken back means taken: it is not typed again after a break.
	p.c.CloseNow()
	q := s.sender("?page=one", p.all)
	require.True(t, q.known)
	require.Equal(t, p.sent, q.typed)
	q.shows("tick-")
}

// TestStoppedPaste: what was pasted by mistake does not stand between the keyboard and the program.
func TestStoppedPaste(t *testing.T) {
	t.Parallel()
	s := start(t)
	p := s.sender("?page=one", nil)
	p.push([]byte("stty -echo; echo ready-$((1)); sleep 600\n"))
	p.shows("ready-1")
	p.push(lines(8<<20, 80))
	p.all = p.all[:p.sent]
	p.says(`{"drop":true}`)
	for p.typed < p.sent {
		require.NoError(t, p.step())
	}
	p.push([]byte("\x03"))
	p.push([]byte("echo back-$((1))\n"))
	p.shows("back-1")
}

// TestPagesAreBounded: pages make up their names, as many as they like.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	s := start(t)
	for i := range 100 {
		p := s.sender("?page="+strconv.Itoa(i), nil)
		require.False(t, p.known)
		p.c.CloseNow()
	}
	require.False(t, s.sender("?page=0", nil).known)
	require.True(t, s.sender("?page=99", nil).known)
	long := "?page=" + strings.Repeat("x", 65)
	s.sender(long, nil).c.CloseNow()
	require.False(t, s.sender(long, nil).known)
}
