package e2e_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// editorServer stands for what an editor leaves in a session: it is started once, found again by its file, and listens both
// on a port of the loopback address and on a socket.
const editorServer = `
import os, socket, sys, threading
home = '/home/work/.editor/'
def serve(l, name):
    while True:
        c, _ = l.accept()
        c.sendall(b'%s %s\n' % (name, c.recv(100).strip()))
        c.close()
tcp = socket.create_server(('127.0.0.1', 0))
unix = socket.socket(socket.AF_UNIX)
unix.bind(home + 'socket')
unix.listen()
threading.Thread(target=serve, args=(unix, b'socket')).start()
with open(home + 'new', 'w') as f:
    f.write('%d %d' % (tcp.getsockname()[1], os.getpid()))
os.rename(home + 'new', home + 'listening')
serve(tcp, b'port')
`

// editorScript is given to a shell on standard input, as VS Code does: it starts the server where none runs, says where it
// listens, and stays.
const editorScript = `
mkdir -p ~/.editor && cd ~/.editor
if ! kill -0 "$(cut -d' ' -f2 listening 2>/dev/null)" 2>/dev/null; then
	rm -f listening socket
	nohup setsid python3 server.py >log 2>&1 </dev/null &
	for i in $(seq 300); do [ -e listening ] && break; sleep 0.1; done
fi
echo "listening on $(cat listening)."
`

// TestEditorsOverSSH does what VS Code Remote-SSH and JetBrains Gateway do, with the user's own OpenSSH.
func TestEditorsOverSSH(t *testing.T) {
	t.Parallel()
	needEngine(t)
	needTools(t, "ssh", "sftp", "ssh-agent", "ssh-add", "ssh-keygen", "python3")
	p := up(t)
	p.session("python", "crate")
	dir, err := os.MkdirTemp("", "berth-ssh-") // short: sockets live in it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(config, []byte(p.must("ssh-config")), 0o600))
	base := []string{"ssh", "-F", config, "-o", "BatchMode=yes"}
	ssh := func(stdin string, args ...string) result {
		t.Helper()
		argv := append(base[1:len(base):len(base)], args...)
		return p.tool(dir, stdin, "ssh", argv...)
	}
	ok := func(r result) string {
		t.Helper()
		require.Zero(t, r.code, r.stdout+r.stderr)
		return r.stdout
	}
	// says sends a word to an address and returns the answer, "" while nobody is there.
	says := func(network, address, word string) string {
		conn, err := net.Dial(network, address)
		if err != nil {
			return ""
		}
		defer conn.Close()
		fmt.Fprintln(conn, word)
		b := make([]byte, 100)
		n, _ := conn.Read(b)
		return string(b[:n])
	}

	p.must("session", "exec", "crate", "--", "mkdir", "-p", ".editor")
	p.sessionHome("crate", ".editor/server.py", editorServer)
	var listening string
	t.Run("a server is left behind, and found again", func(t *testing.T) {
		first := ok(ssh(editorScript, "-T", "-o", "ConnectTimeout=120", "crate.berth"))
		require.Regexp(t, `^listening on \d+ \d+\.\n$`, first)
		require.Equal(t, first, ok(ssh(editorScript, "-T", "crate.berth", "sh")))
		listening = strings.Fields(first)[2]
	})
	t.Run("it is reached by SOCKS, by a forwarded port and by a forwarded socket", func(t *testing.T) {
		socks, port, local := freePort(t), freePort(t), filepath.Join(dir, "s")
		process(t, dir, "forwards", append(append(p.prefix(), base...), "-T", "-N", "-o", "ExitOnForwardFailure=yes", "-D", "127.0.0.1:"+socks,
			"-L", "127.0.0.1:"+port+":localhost:"+listening,
			"-L", local+":/home/work/.editor/socket", "crate.berth")...)
		p.eventually("the port answers", func() bool { return says("tcp", "127.0.0.1:"+port, "hi") == "port hi\n" })
		require.Equal(t, "socket hi\n", says("unix", local, "hi"))
		r := p.tool(dir, "", "python3", "-c", socksClient, socks, listening)
		require.Equal(t, "port hi\n", r.stdout, r.stderr)
		var all sync.WaitGroup
		answers := make([]string, 40)
		for i := range answers {
			all.Go(func() { answers[i] = says("tcp", "127.0.0.1:"+port, fmt.Sprint(i)) })
		}
		all.Wait()
		for i, got := range answers {
			require.Equal(t, fmt.Sprintf("port %d\n", i), got)
		}
	})
	t.Run("the session reaches back", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte("from home\n"))
				_ = conn.Close()
			}
		}()
		back := `import socket, sys
s = socket.socket(socket.AF_UNIX) if sys.argv[1][0] == '/' else socket.socket()
s.connect(sys.argv[1] if sys.argv[1][0] == '/' else ('127.0.0.1', int(sys.argv[1])))
print(s.recv(99).decode(), end='')`
		p.sessionHome("crate", "back.py", back)
		require.Equal(t, "from home\n", ok(ssh("", "-R", "8456:"+l.Addr().String(), "-o", "ExitOnForwardFailure=yes", "crate.berth",
			"python3 back.py 8456")))
		require.Equal(t, "from home\n", ok(ssh("", "-R", "/home/work/back.sock:"+l.Addr().String(), "-o", "ExitOnForwardFailure=yes",
			"crate.berth", "python3 back.py /home/work/back.sock")))
	})
	t.Run("the user's key agent", func(t *testing.T) {
		key := filepath.Join(dir, "own")
		ok(p.tool(dir, "", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key))
		sock := filepath.Join(dir, "agent")
		process(t, dir, "agent", "ssh-agent", "-D", "-a", sock)
		p.eventually("the agent has the key", func() bool {
			return p.tool(dir, "", "env", "SSH_AUTH_SOCK="+sock, "ssh-add", "-q",
				key).code == 0
		})
		ask := `import os, socket
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ['SSH_AUTH_SOCK'])
s.sendall(b'\0\0\0\1\x0b')
b = s.recv(9)
print(b[4], b[8])`
		p.sessionHome("crate", "ask.py", ask)
		r := p.tool(dir, "", "env", append([]string{"SSH_AUTH_SOCK=" + sock},
			append(base[:len(base):len(base)], "-A", "crate.berth", "python3 ask.py")...)...)
		require.Equal(t, "12 1\n", ok(r), "a list of one key")
	})
	t.Run("many commands on one connection", func(t *testing.T) {
		control := filepath.Join(dir, "control")
		process(t, dir, "master", append(append(p.prefix(), base...), "-N", "-M", "-S", control, "crate.berth")...)
		p.eventually("the connection is there", func() bool { return ssh("", "-S", control, "-O", "check", "crate.berth").code == 0 })
		var all sync.WaitGroup
		results := make([]result, 25)
		for i := range results {
			all.Go(func() {
				results[i] = p.tool(dir, fmt.Sprint("in ", i), "ssh", "-S", control, "-F", config, "-o", "ProxyCommand=false", "crate.berth",
					fmt.Sprintf("cat; echo err >&2; exit %d", i))
			})
		}
		all.Wait()
		for i, r := range results {
			require.Equal(t, fmt.Sprint("in ", i), r.stdout, r.stderr)
			require.Equal(t, i, r.code)
			require.Contains(t, r.stderr, "err\n")
		}
		port := freePort(t)
		ok(ssh("", "-S", control, "-O", "forward", "-L", "127.0.0.1:"+port+":127.0.0.1:"+listening, "crate.berth"))
		require.Equal(t, "port late\n", says("tcp", "127.0.0.1:"+port, "late"))
		ok(ssh("", "-S", control, "-O", "cancel", "-L", "127.0.0.1:"+port+":127.0.0.1:"+listening, "crate.berth"))
		require.Empty(t, says("tcp", "127.0.0.1:"+port, "late"))
		ok(ssh("", "-S", control, "-O", "exit", "crate.berth"))
	})
	t.Run("environment, names and liveness", func(t *testing.T) {
		require.Equal(t, "one two\n", ok(ssh("", "-o", "SetEnv=EDITOR_TOKEN=one LC_EDITOR=two", "crate.berth", "echo $EDITOR_TOKEN $LC_EDITOR")))
		r := ssh("", "-l", "ubuntu", "crate.berth", "true")
		require.Equal(t, 255, r.code)
		require.Contains(t, r.stderr, "log in as work")
		// The program asks whether the server lives when nothing has come for a second, and the server answers (82, or 81).
		p.eventually("a question of liveness is answered", func() bool {
			r := ssh("", "-vvv", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=1000", "crate.berth", "sleep 3; echo alive")
			require.Equal(t, "alive\n", ok(r))
			return regexp.MustCompile(`receive packet: type 8[12]`).MatchString(r.stderr)
		})
	})
	t.Run("files", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("text\n"), 0o600))
		r := p.tool(dir, "put -f f a\nput f b\nrename a b\nln b c\nln -s c d\ndf -h .\n", "sftp", "-vvv", "-F", config, "-b", "-", "crate.berth")
		ok(r)
		for _, name := range []string{"posix-rename", "statvfs", "hardlink"} {
			require.Contains(t, r.stderr, name+"@openssh.com")
		}
		require.Equal(t, "2 text\n", ok(ssh("", "crate.berth", "echo $(stat -c %h b) $(cat d)")))
	})
	t.Run("it all outlives the connections", func(t *testing.T) {
		require.Equal(t, "listening on "+listening+" ", ok(ssh(editorScript, "-T", "crate.berth"))[:len("listening on ")+len(listening)+1])
	})
	p.must("session", "rm", "--yes", "crate")
	p.clean()
}

// socksClient asks for a port through SOCKS5, as VS Code's resolver does, and prints the answer.
const socksClient = `
import socket, struct, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.sendall(b'\5\1\0')
assert s.recv(2) == b'\5\0'
s.sendall(b'\5\1\0\1\x7f\0\0\1' + struct.pack('>H', int(sys.argv[2])))
assert s.recv(10)[1] == 0
s.sendall(b'hi\n')
print(s.recv(99).decode(), end='')
`
