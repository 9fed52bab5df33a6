package cdi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Bounds of what commands may print.
const (
	maxOutput = 256 << 10
	maxWords  = 256 // bytes of one problem
)

// errOutput says that a command printed more than is read.
var errOutput = errors.New("it printed more than 256 KiB")

// limited keeps the first bytes of what is written and refuses what comes after them, which ends the command. It is no bytes.Buffer, whose
// ReadFrom would know no bound.
type limited struct{ b []byte }

func (l *limited) Write(b []byte) (int, error) {
	if len(l.b)+len(b) > maxOutput {
		return 0, errOutput
	}
	l.b = append(l.b, b...)
	return len(b), nil
}

// run runs a program without a shell and returns what it printed. The program and everything that it started are killed when ctx ends.
func run(ctx context.Context, args []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out limited
	cmd.Stdout, cmd.Stderr = &out, io.Discard
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return out.b, err
}

// outcome runs a command with its time limit and tells in words what went wrong.
func (d *Driver) outcome(ctx context.Context, c command) ([]byte, error) {
	rctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	out, err := d.o.Run(rctx, c.args)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case rctx.Err() != nil:
		return nil, fmt.Errorf("%s did not end within %s", c.args[0], c.timeout)
	case err != nil:
		return nil, fmt.Errorf("run %s: %w", c.args[0], err)
	}
	return out, nil
}

// measures are the names that commands may use; the manager knows their units.
var measures = map[string]bool{"util": true, "mem": true, "mem_total": true, "power": true, "temperature": true}

// parseMetrics reads measurements by device: lines of "DEVICE NAME VALUE", or JSON objects with "device" and numbers. What is not known,
// and what is no number or below zero, is left out.
func parseMetrics(text []byte) map[string]map[string]float64 {
	out := map[string]map[string]float64{}
	add := func(device, name string, value float64) {
		if !measures[name] || device == "" || math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
			return
		}
		if out[device] == nil {
			out[device] = map[string]float64{}
		}
		out[device][name] = value
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("{")) {
			var object map[string]any
			if json.Unmarshal(line, &object) != nil {
				continue
			}
			device, _ := object["device"].(string)
			for name, v := range object {
				if value, ok := v.(float64); ok {
					add(device, name, value)
				}
			}
			continue
		}
		f := strings.Fields(string(line))
		if len(f) != 3 {
			continue
		}
		if value, err := strconv.ParseFloat(f[2], 64); err == nil {
			add(f[0], f[1], value)
		}
	}
	return out
}

// parseHealth reads the state of devices: lines of "DEVICE ok" or "DEVICE WORDS", the words being the problem.
func parseHealth(text []byte) map[string]string {
	out := map[string]string{}
	for line := range bytes.Lines(text) {
		name, words, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if words = clean(words); name == "" || words == "" {
			continue
		}
		if words == "ok" {
			words = ""
		}
		out[name] = words
	}
	return out
}

// clean makes words of a stranger fit to be shown.
func clean(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "")
	}
	return text
}
