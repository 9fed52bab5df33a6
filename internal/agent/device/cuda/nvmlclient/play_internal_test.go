package nvmlclient

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
)

// The test program plays the helper: the first variable says which parts it plays one life after the other, the last one again
// and again, and the second names a file that counts the lives.
const (
	partsVar = "BERTH_TEST_NVML_PARTS"
	livesVar = "BERTH_TEST_NVML_LIVES"
)

func TestMain(m *testing.M) {
	if parts := os.Getenv(partsVar); parts != "" {
		os.Exit(play(strings.Split(parts, ","), os.Getenv(livesVar)))
	}
	goleak.VerifyTestMain(m)
}

// play is the program; it returns the exit status.
func play(parts []string, lives string) int {
	f, err := os.OpenFile(lives, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 90
	}
	if _, err := f.WriteString("x"); err != nil {
		return 91
	}
	before, err := os.ReadFile(lives)
	if err != nil {
		return 92
	}
	say := func(m nvmlwire.Message) { _ = json.NewEncoder(os.Stdout).Encode(m) }
	lines := bufio.NewScanner(os.Stdin)
	next := func() (r nvmlwire.Request) { // ID 0: the end
		if lines.Scan() {
			_ = json.Unmarshal(lines.Bytes(), &r)
		}
		return r
	}
	answer := func(r nvmlwire.Request) {
		m := nvmlwire.Message{ID: r.ID}
		if r.Method == nvmlwire.MethodLook {
			m.Facts = &nvmlwire.Facts{Driver: fmt.Sprintf("life %d", len(before)), GPUs: []nvmlwire.GPU{{UUID: "GPU-a"}}}
		} else {
			m.Sample = &nvmlwire.Sample{Uses: []nvmlwire.Use{{UUID: "GPU-a"}}}
		}
		say(m)
	}
	stay := func() { <-time.After(time.Hour) }
	part := parts[min(len(before), len(parts))-1]
	switch part {
	case "mute":
		stay()
	case "crash":
		fmt.Fprintln(os.Stderr, "the sky has fallen")
		return 3
	case "heir": // another process, which ends with the tests, holds its standard error
		heir := exec.Command("tail", fmt.Sprintf("--pid=%d", os.Getppid()), "-f", os.DevNull)
		heir.Stderr = os.Stderr
		if err := heir.Start(); err != nil {
			return 94
		}
		fmt.Fprintln(os.Stderr, "mine is yours")
		return 3
	case "other":
		say(nvmlwire.Message{Version: nvmlwire.Version + 1})
		stay()
	case "rude":
		say(nvmlwire.Message{ID: 1})
		stay()
	}
	if part == "loud" {
		fmt.Fprintln(os.Stderr, strings.Repeat("y", 100<<10))
		for i := range 500 {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
	}
	say(nvmlwire.Message{Version: nvmlwire.Version})
	if part == "storm" {
		for xid := range 100 {
			say(nvmlwire.Message{Event: &nvmlwire.Event{UUID: "GPU-a", XID: uint64(xid)}})
		}
		say(nvmlwire.Message{Event: &nvmlwire.Event{UUID: "GPU-b", XID: 79}})
	}
	for r := next(); r.ID != 0; r = next() {
		switch part {
		case "well", "loud", "storm":
			answer(r)
		case "hang":
			stay()
		case "exit":
			fmt.Fprintln(os.Stderr, "no more of this")
			return 4
		case "garbage":
			fmt.Println("segmentation fault")
		case "long":
			fmt.Println(strings.Repeat("x", nvmlwire.MaxLine+1))
		case "stranger":
			say(nvmlwire.Message{ID: r.ID + 100})
		case "empty":
			say(nvmlwire.Message{})
		case "again":
			say(nvmlwire.Message{Version: nvmlwire.Version})
		case "nameless":
			say(nvmlwire.Message{Event: &nvmlwire.Event{XID: 79}})
		case "nothing":
			say(nvmlwire.Message{ID: r.ID})
		case "failing":
			say(nvmlwire.Message{ID: r.ID, Error: "the NVIDIA driver is not loaded"})
		case "doubled":
			say(nvmlwire.Message{ID: r.ID, Facts: &nvmlwire.Facts{GPUs: []nvmlwire.GPU{{UUID: "GPU-a"}, {UUID: "GPU-a"}}}})
		case "unordered":
			second := next()
			answer(second)
			answer(r)
		case "closed":
			os.Stdout.Close()
			stay()
		default:
			return 93
		}
	}
	return 0
}
