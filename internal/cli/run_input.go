package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// maxLine bounds one line of input in bytes.
const maxLine = 1 << 20

// inputLine is an answer to a request for input.
type inputLine struct {
	text string
	err  error
}

// input reads standard input line by line, only when the program asks. A read cannot be
// taken back, so one that is still waiting when the program ends is left behind.
type input struct {
	lines chan inputLine
	r     *bufio.Reader
	file  *os.File // the terminal, or nil
	echo  io.Writer
	state *term.State
}

func newInput(r io.Reader, echo io.Writer) *input {
	in := &input{lines: make(chan inputLine, 1), r: bufio.NewReader(r), echo: echo}
	if frame.IsTerminal(r) {
		in.file = r.(*os.File)
		in.state, _ = term.GetState(int(in.file.Fd()))
	}
	return in
}

// request reads one line into lines. The end of the input is sent as api.InputEOF.
func (in *input) request(password bool) {
	go func() {
		if password && in.file != nil {
			b, err := term.ReadPassword(int(in.file.Fd()))
			fmt.Fprintln(in.echo)
			in.lines <- answer(string(b), err)
			return
		}
		in.lines <- answer(readLine(in.r))
	}()
}

// restore gives the terminal its echo back, should a password have been asked for.
func (in *input) restore() {
	if in.file != nil && in.state != nil {
		_ = term.Restore(int(in.file.Fd()), in.state)
	}
}

func answer(text string, err error) inputLine {
	if errors.Is(err, io.EOF) {
		if text == "" {
			return inputLine{text: api.InputEOF}
		}
		err = nil // The last line has no line end.
	}
	return inputLine{text: text, err: err}
}

// readLine returns a line without its end.
func readLine(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		part, err := r.ReadSlice('\n')
		b.Write(part)
		if b.Len() > maxLine {
			return "", fmt.Errorf("a line is longer than %d KiB", maxLine>>10)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return strings.TrimSuffix(strings.TrimSuffix(b.String(), "\n"), "\r"), err
	}
}
