// Package cell is the contract between a run and whatever executes its code.
//
// Implemented by runner (which records output for the run's reader) and used by
// python, jupyter and recipe. It holds no logic.
package cell

// The text streams of a console; the names are the wire's.
const (
	Stdout = "stdout"
	Stderr = "stderr"
	HTML   = "html"
	Log    = "log"
)

// Sink takes the output of a run and answers its questions.
type Sink interface {
	// Text takes valid UTF-8. It waits while the reader is behind.
	Text(stream, text string)
	// TextNow never waits: what does not fit is left out, counted and told to the reader.
	TextNow(stream, text string)
	// MediaNow takes one picture or the like; it never waits.
	MediaNow(mime, data string)
	// Congested reports that the producer should pause; Relieved is closed when it may go on.
	Congested() bool
	Relieved() <-chan struct{}
	// Ask waits for the reader's answer to input(); the prompt was printed before.
	Ask(password bool) Answer
}

// Answer is the reply to a question.
type Answer struct {
	Text string
	EOF  bool // there is no more input
	None bool // the run was interrupted; nobody answers
}
