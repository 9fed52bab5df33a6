package runner

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/proc"
)

// inputSocket returns the socket where Python programs of batch mode ask for input (see
// sitecustomize.py), listening from the first call on.
func (r *Runner) inputSocket() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := filepath.Join(r.userDir(), "input.sock")
	if r.input != nil {
		return path, nil
	}
	// As the user, to whom the directory belongs: the runner may have no right to write there.
	var l net.Listener
	err := proc.AsUser(r.user, func() (err error) {
		_ = os.Remove(path) // of an earlier life of this container
		l, err = net.Listen("unix", path)
		return err
	})
	if err != nil {
		return "", err
	}
	r.input = l
	r.tasks.Add(1)
	go func() {
		defer r.tasks.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed with the runner
			}
			r.tasks.Add(1)
			go func() {
				defer r.tasks.Done()
				r.answerProgram(c)
			}()
		}
	}()
	return path, nil
}

// answerProgram serves one question: a JSON line in, a JSON line out. No answer, only the end of
// the connection, means that nobody is there to answer.
func (r *Runner) answerProgram(c net.Conn) {
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second)) // a local socket has deadlines
	in := bufio.NewReaderSize(c, 4096)
	line, err := in.ReadSlice('\n')
	var q struct{ Password bool }
	if err != nil || json.Unmarshal(line, &q) != nil {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	r.queue.mu.Lock()
	j := r.queue.current
	r.queue.mu.Unlock()
	if j == nil {
		return
	}
	gone := make(chan struct{})
	go func() { // ends with the connection
		defer close(gone)
		_, _ = in.ReadByte()
	}()
	a := j.ask(q.Password, gone)
	if !a.None {
		writeAnswer(c, a)
	}
	c.Close()
	<-gone
}

func writeAnswer(c net.Conn, a cell.Answer) {
	b, err := json.Marshal(map[string]any{"text": a.Text, "eof": a.EOF})
	if err != nil {
		return
	}
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, _ = c.Write(append(b, '\n')) // a program that went away needs no answer
}
