package mail_test

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/mail"
	"berth.dev/berth/internal/testkit/await"
)

// server is an SMTP server for one e-mail; it passes on what it got.
func server(t *testing.T) (address string, got <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	mails := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		r, text, data := bufio.NewScanner(conn), &strings.Builder{}, false
		_, _ = conn.Write([]byte("220 test\r\n"))
		for r.Scan() {
			text.WriteString(r.Text() + "\n")
			answer := "250 ok\r\n"
			switch {
			case data && r.Text() != ".":
				continue
			case data:
				data = false
			case r.Text() == "DATA":
				data, answer = true, "354 go on\r\n"
			case r.Text() == "QUIT":
				mails <- text.String()
				answer = "221 bye\r\n"
			}
			_, _ = conn.Write([]byte(answer))
		}
	}()
	return l.Addr().String(), mails
}

func TestSend(t *testing.T) {
	t.Parallel()
	address, got := server(t)
	s := mail.New(mail.Config{Address: address, From: "Berth <berth@x.org>", TLS: "none"})
	require.NoError(t, s.Send(t.Context(), "ada@x.org", "Grüße", "one\n.\ntwö\n"))
	text := await.Value(t, got)
	for _, part := range []string{"MAIL FROM:<berth@x.org>", "RCPT TO:<ada@x.org>", "To: <ada@x.org>", "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=",
		"tw=C3=B6", "..\n"} {
		require.Contains(t, text, part)
	}
	for _, bad := range []string{"a@x.org\r\nRCPT TO:<b@x.org>", "a@x.org, b@x.org", "<a@x.org>"} {
		require.Error(t, s.Send(t.Context(), bad, "x", "y"))
	}
	require.Error(t, s.Send(t.Context(), "a@x.org", "x\r\nBcc: b@x.org", "y"))
}

// A server that offers no TLS gets nothing unless the operator said that it may.
func TestNothingInTheClear(t *testing.T) {
	t.Parallel()
	address, _ := server(t)
	s := mail.New(mail.Config{Address: address, From: "berth@x.org"})
	require.Error(t, s.Send(t.Context(), "ada@x.org", "x", "y"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Send(ctx, "ada@x.org", "x", "y"))
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.Nil(t, mail.New(mail.Config{}))
	require.NoError(t, mail.Config{}.Validate())
	good := mail.Config{Address: "smtp.x.org:587", From: "berth@x.org"}
	require.NoError(t, good.Validate())
	for _, change := range []func(*mail.Config){
		func(c *mail.Config) { c.Address = "smtp.x.org" }, func(c *mail.Config) { c.From = "x" }, func(c *mail.Config) { c.TLS = "maybe" },
		func(c *mail.Config) { c.TLS, c.Username, c.Password = "none", "u", chassis.NewSecret("p") },
	} {
		bad := good
		change(&bad)
		require.Error(t, bad.Validate())
	}
}
