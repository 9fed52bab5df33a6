package e2e_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAppsInTheBrowser uses apps as people do: Chromium on Jupyter, on the web terminal, and on an app that means harm.
func TestAppsInTheBrowser(t *testing.T) {
	t.Parallel()
	needEngine(t)
	b := newBrowser(t)
	p := up(t)
	py, demo := p.session("python", "notebook"), p.session("web-demo", "demo")

	for _, mode := range modes {
		t.Run("Jupyter runs a cell, "+mode, func(t *testing.T) { jupyterCell(t, p, b, py, mode) })
	}
	t.Run("the terminal runs top and survives a reload", func(t *testing.T) { terminalReload(t, p, b, py) })
	for _, mode := range modes {
		t.Run("a hostile app reaches nothing, "+mode, func(t *testing.T) { hostilePage(t, p, b, py, demo, mode) })
	}
	p.must("session", "rm", "--yes", "notebook")
	p.must("session", "rm", "--yes", "demo")
	p.clean()
}

func jupyterCell(t *testing.T, p *platform, b *browser, py, mode string) {
	p.sessionHome("notebook", "jupyter-"+mode+".ipynb",
		`{"cells":[{"cell_type":"code","execution_count":null,"id":"a","metadata":{},"outputs":[],"source":["print('the answer is', 6*7)"]}],
		"metadata":{"kernelspec":{"display_name":"Python 3","language":"python","name":"python3"}},"nbformat":4,"nbformat_minor":5}`)
	c := newConsole(t, p.env())
	app := c.launch(py, "jupyter", "mode="+mode)
	tab := b.page("jupyter-"+mode, "owner-"+mode)
	tab.t = t
	v := tab.enters(app.Enter)
	require.Equal(t, 200, v.Status)
	require.True(t, strings.HasPrefix(v.URL, app.Base+"/"), v.URL)
	require.NotContains(t, v.URL, "token=", "the one-time code stays in the address")
	tab.open(app.Base + "/notebooks/jupyter-" + mode + ".ipynb")
	// The classic notebook says by its kernel indicator that the WebSocket to the kernel is open.
	tab.until(`window.Jupyter && Jupyter.notebook && Jupyter.notebook._fully_loaded && Jupyter.notebook.kernel && ` +
		`Jupyter.notebook.kernel.is_connected()`)
	tab.eval(`Jupyter.notebook.execute_all_cells()`, nil)
	tab.until(`document.querySelector('.output_stdout, .output_text') && document.querySelector('.output_stdout, ` +
		`.output_text').innerText.includes('the answer is 42')`)
}

// sessionHome writes a file into the home directory of a session.
func (p *platform) sessionHome(session, name, text string) {
	p.t.Helper()
	r := p.run(text, "session", "exec", "-i", session, "--", "sh", "-c", "cat > /home/work/"+name)
	require.Zero(p.t, r.code, r.stdout+r.stderr)
}

func terminalReload(t *testing.T, p *platform, b *browser, py string) {
	c := newConsole(t, p.env())
	app := c.launch(py, "ttyd")
	tab := b.page("terminal", "owner-terminal")
	tab.t = t
	require.Equal(t, 200, tab.open(app.Enter).Status)
	// The terminal draws its rows as text, whatever its renderer: xterm keeps them in its buffer.
	screen := `(() => { const t = window.term; if (!t) return document.body.innerText; const b = t.buffer.active, lines = [];
		for (let i = 0; i < b.length; i++) lines.push(b.getLine(i).translateToString(true)); return lines.join("\n") })()`
	shows := func(text string) {
		t.Helper()
		quoted, _ := json.Marshal(text)
		tab.until(screen + `.includes(` + string(quoted) + `)`)
	}
	prompt := func() { t.Helper(); tab.until(`/\$\s*$/.test(` + screen + `)`) }
	prompt() // the page takes what is typed only when it is connected: nobody knows which program would get it
	tab.click(".xterm")
	tab.typed("kept=still-here; echo $((6*7))-is-it\n")
	shows("42-is-it")
	tab.typed("top -d 1\n")
	shows("load average")
	tab.reload()
	tab.until(`document.querySelector('.xterm')`)
	shows("load average") // the same program goes on
	tab.click(".xterm")
	tab.typed("q")
	prompt() // top throws away what is typed until it has ended
	tab.typed("echo $kept-after\n")
	shows("still-here-after")
	// The programs know the size of the window.
	tab.typed("stty size\n")
	tab.until(`/\n\d+ \d+\n/.test(` + screen + `)`)
	// A paste of more than anything on the way holds arrives whole.
	tab.typed("stty -echo; echo ready-$((1)); head -c $((4000*1000)) >/tmp/pasted; stty echo; sha256sum /tmp/pasted\n")
	shows("ready-1")
	tab.eval(`term.paste(("x".repeat(99) + "\n").repeat(40000))`, nil)
	shows(fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 40_000)))))
}

func hostilePage(t *testing.T, p *platform, b *browser, py, demo, mode string) {
	c := newConsole(t, p.env())
	victim := c.launch(py, "jupyter", "mode="+mode)
	other := c.launch(demo, "web", "mode="+mode)
	hostile := c.launch(demo, "late", "mode="+mode) // another circuit, the app of an attacker
	tab := b.page("hostile-"+mode, "owner-hostile-"+mode)
	tab.t = t
	tab.open(victim.Enter)
	tab.open(other.Enter)
	tab.open(hostile.Enter)
	q := url.Values{"api": {c.endpoint}, "other": {other.Base}, "forge": {"berth-0123", "berth-forged"}}
	require.Equal(t, 200, tab.open(hostile.Base+"/attack?"+q.Encode()).Status)
	tab.until(`document.getElementById('result').textContent.includes('"done": true')`)
	var result map[string]any
	require.NoError(t, json.Unmarshal([]byte(tab.text("#result")), &result))
	text := func(name string) string { s, _ := result[name].(string); return s }
	t.Logf("what the hostile page got: %v", result)

	require.NotContains(t, text("cookie"), "berth", "a script reads the platform's cookies")
	for _, name := range []string{"own", "afterForging"} {
		require.Contains(t, text(name), "read 200", name)
		require.NotContains(t, text(name), "berth-", "an app's server sees the platform's cookies")
	}
	for _, name := range []string{"api", "apiPost", "other", "otherPost", "otherFrame"} {
		require.NotContains(t, text(name), "read 2", "%s: a hostile page reads what is not its own", name)
	}
	require.NotContains(t, text("otherFrame"), `"target"`)
	for _, name := range []string{"apiSocket", "otherSocket"} {
		require.NotEqual(t, "open", text(name), name)
	}
	// Forged cookies must not lock the owner out, of this app or of another.
	require.Equal(t, 200, tab.open(other.Base+"/").Status)
	require.Contains(t, tab.text("h1"), "It works")
}
