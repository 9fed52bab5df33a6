package runners

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// confineLimit bounds the handing over of control groups.
const confineLimit = 5 * time.Second

// Confine hands open files of control groups to a kernel's runner; see run.PathConfine. The files stay the caller's.
func (p *Pool) Confine(ctx context.Context, kernel cluster.KernelID, token string, procs []*os.File, oom *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, confineLimit)
	defer cancel()
	conn, err := p.dial(ctx, kernel)
	if err != nil {
		return fault.Unavailablef("the runner of kernel %s does not answer", kernel).WithReason("runner-unreachable").WithCause(err)
	}
	defer conn.Close()
	until, _ := ctx.Deadline()
	if err := conn.SetDeadline(until); err != nil {
		return fmt.Errorf("confine the processes of kernel %s: %w", kernel, err)
	}
	if err := confine(conn, token, procs, oom); err != nil {
		return fmt.Errorf("confine the processes of kernel %s: %w", kernel, err)
	}
	return nil
}

func confine(conn net.Conn, token string, procs []*os.File, oom *os.File) error {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("its runner is not reached through a unix socket")
	}
	q, err := http.NewRequest(http.MethodPost, "http://runner"+run.PathConfine, http.NoBody)
	if err != nil {
		return err
	}
	q.Header = http.Header{"Authorization": {"Bearer " + token}, "Connection": {"Upgrade"}, "Upgrade": {run.ConfineProtocol}}
	if err := q.Write(conn); err != nil {
		return err
	}
	from := bufio.NewReader(io.LimitReader(conn, 64<<10))
	reply, err := http.ReadResponse(from, q)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusSwitchingProtocols {
		return fault.Unavailablef("the runner answered %s", reply.Status)
	}
	var fds []int
	for _, f := range procs {
		fds = append(fds, int(f.Fd()))
	}
	if oom != nil {
		fds = append(fds, int(oom.Fd()))
	}
	text, err := json.Marshal(run.Confinement{Procs: len(procs), OOM: oom != nil})
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := socket.WriteMsgUnix(text, rights, nil); err != nil {
		return err
	}
	done := make([]byte, len(run.ConfineDone))
	if _, err := io.ReadFull(from, done); err != nil {
		return err
	}
	return nil
}
