package runner

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// How long the first process waits for the agent's control groups, and the agent for the runner to take them.
const (
	confineWait = 30 * time.Second
	confineTake = 5 * time.Second
)

// hold keeps processes from starting until the agent has sent their control groups.
func (r *Runner) hold() {
	r.table.Hold(confineWait, func() {
		r.log.Warn("the agent sent no control groups: the session's processes share their limits with the runner")
	})
}

// serveConfine takes the control groups of the session's processes; see run.PathConfine.
func (r *Runner) serveConfine(w http.ResponseWriter, q *http.Request) {
	c, ok := q.Context().Value(connKey{}).(*boundedConn)
	if !ok || q.Header.Get("Upgrade") != run.ConfineProtocol {
		run.WriteFailure(w, fault.Invalidf("this call takes an upgrade to %s", run.ConfineProtocol).WithReason("no-upgrade"))
		return
	}
	socket, ok := c.Conn.(*net.UnixConn)
	if !ok {
		run.WriteFailure(w, fault.Invalidf("this call takes a unix socket"))
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	defer conn.Close()
	procs, oom, err := takeGroups(conn, socket)
	if err != nil {
		r.log.Warn("the control groups of the session's processes could not be taken", "err", err)
		return
	}
	r.table.Confine(procs, oom)
	_, _ = io.WriteString(conn, run.ConfineDone) // an agent that left calls again
}

// takeGroups answers to the upgrade and receives the files.
func takeGroups(conn net.Conn, socket *net.UnixConn) (procs []*os.File, oom *os.File, err error) {
	if err := conn.SetDeadline(time.Now().Add(confineTake)); err != nil {
		return nil, nil, err
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+run.ConfineProtocol+"\r\n\r\n")
	if err != nil {
		return nil, nil, err
	}
	text, rights := make([]byte, run.MaxConfinement), make([]byte, unix.CmsgSpace(4*run.MaxConfineFiles))
	n, m, _, _, err := socket.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, nil, err
	}
	var files []*os.File
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
		}
	}()
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return nil, nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, nil, err
		}
		for _, fd := range fds { // ReadMsgUnix receives them close-on-exec
			files = append(files, os.NewFile(uintptr(fd), "control group"))
		}
	}
	var c run.Confinement
	if err := json.Unmarshal(text[:n], &c); err != nil {
		return nil, nil, err
	}
	want := c.Procs
	if c.OOM {
		want++
	}
	if c.Procs < 0 || want != len(files) {
		return nil, nil, fmt.Errorf("%d files came, expected are %d", len(files), want)
	}
	if c.OOM {
		oom = files[c.Procs]
	}
	return files[:c.Procs], oom, nil
}
