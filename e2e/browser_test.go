package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browserTools makes sure of Chromium and its driver, once per run: the directory of the driver's modules, Chromium's path.
var browserTools = sync.OnceValues(func() ([2]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../scripts/browser.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var tools [2]string
	copy(tools[:], strings.Split(strings.TrimSpace(string(out)), "\n"))
	return tools, err
})

// browser is one headless Chromium with any number of pages.
type browser struct {
	t       testing.TB
	in      io.WriteCloser
	replies *bufio.Scanner
	kill    func()
}

// newBrowser starts Chromium. Where its programs are missing the story is skipped, but never in CI, which installs them.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	tools := needBrowser(t)
	cmd := exec.Command("node", filepath.Join("browser", "driver.mjs"))
	cmd.Env = append(os.Environ(), "BERTH_BROWSER_MODULES="+tools[0], "BERTH_CHROMIUM="+tools[1])
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	replies := bufio.NewScanner(out)
	replies.Buffer(nil, 16<<20)
	b := &browser{t: t, in: in, replies: replies, kill: func() { _ = cmd.Process.Kill() }}
	t.Cleanup(func() {
		_ = in.Close()
		stop := time.AfterFunc(20*time.Second, b.kill)
		_ = cmd.Wait()
		stop.Stop()
	})
	return b
}

// try sends one request to the driver; fault is what the driver could not do.
func (b *browser) try(request map[string]any, into any) (fault string) {
	b.t.Helper()
	line, err := json.Marshal(request)
	require.NoError(b.t, err)
	stop := time.AfterFunc(patience, b.kill) // ends Scan below
	defer stop.Stop()
	_, err = b.in.Write(append(line, '\n'))
	require.NoError(b.t, err, "the browser has ended")
	require.True(b.t, b.replies.Scan(), "the browser has ended during %s", line)
	var reply struct {
		Value json.RawMessage `json:"value"`
		Error string          `json:"error"`
	}
	require.NoError(b.t, json.Unmarshal(b.replies.Bytes(), &reply))
	if reply.Error == "" && into != nil {
		require.NoError(b.t, json.Unmarshal(reply.Value, into), "the browser answered %s", reply.Value)
	}
	return reply.Error
}

// page is one tab; its context, the jar of cookies, may be that of others.
type page struct {
	*browser
	name, context string
}

// page opens a tab of its own in the context of that name.
func (b *browser) page(name, context string) *page { return &page{b, name, context} }

func (p *page) do(op string, args map[string]any, into any) {
	p.t.Helper()
	if fault := p.attempt(op, args, into); fault != "" {
		var log []string
		_ = p.attempt("log", nil, &log)
		var text string
		_ = p.attempt("text", map[string]any{"selector": "body", "timeout": 1000}, &text)
		p.t.Fatalf("browser: %s %v: %s\npage: %.1500s\nconsole: %s", op, args, fault, text, strings.Join(log, "\n"))
	}
}

func (p *page) attempt(op string, args map[string]any, into any) string {
	p.t.Helper()
	request := map[string]any{"op": op, "page": p.name, "context": p.context}
	for k, v := range args {
		request[k] = v
	}
	return p.try(request, into)
}

// visit is where an address led.
type visit struct {
	Status  int               `json:"status"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

func (p *page) open(url string) (v visit) {
	p.t.Helper()
	p.do("open", map[string]any{"url": url}, &v)
	return v
}

func (p *page) reload() (v visit) {
	p.t.Helper()
	p.do("reload", nil, &v)
	return v
}

// enters opens an app by its link. One that does not listen yet is loaded again, as people do.
func (p *page) enters(link string) (v visit) {
	p.t.Helper()
	v = p.open(link)
	for end := time.Now().Add(patience); v.Status >= 502 && v.Status <= 504 && time.Now().Before(end); v = p.reload() {
		<-time.After(500 * time.Millisecond)
	}
	return v
}

// eval runs JavaScript in the page.
func (p *page) eval(script string, into any) {
	p.t.Helper()
	p.do("eval", map[string]any{"script": script}, into)
}

// until waits for JavaScript to give something true.
func (p *page) until(script string) {
	p.t.Helper()
	p.do("until", map[string]any{"script": script, "timeout": 180_000}, nil)
}

func (p *page) click(selector string) {
	p.t.Helper()
	p.do("click", map[string]any{"selector": selector}, nil)
}

func (p *page) typed(text string) { p.t.Helper(); p.do("type", map[string]any{"text": text}, nil) }

func (p *page) text(selector string) (text string) {
	p.t.Helper()
	p.do("text", map[string]any{"selector": selector}, &text)
	return text
}

// TestBrowserDriver needs no cluster: the driver itself must work before stories are told with it.
func TestBrowserDriver(t *testing.T) {
	needEngine(t)
	t.Parallel()
	b := newBrowser(t)
	p := b.page("one", "someone")
	p.open("data:text/html,<title>t</title><p id=a>hello</p><input id=i>")
	require.Equal(t, "hello", p.text("#a"))
	p.click("#i")
	p.typed("forty-two")
	p.until("document.getElementById('i').value === 'forty-two'")
	require.NotEmpty(t, p.attempt("click", map[string]any{"selector": "#missing", "timeout": 100}, nil))
}

// needBrowser is what scripts/browser.sh prints: the modules of playwright-core and the path of Chromium, of one that changes of the host's
// networks do not disturb. It skips the test where there is no browser.
func needBrowser(t *testing.T) [2]string {
	t.Helper()
	tools, err := browserTools()
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("needs Chromium, Node.js 18 and playwright-core: run scripts/install-deps.sh test, see scripts/browser.sh")
	}
	require.NoError(t, err, "scripts/browser.sh")
	return [2]string{tools[0], steadyBrowser(t, tools[1])}
}
