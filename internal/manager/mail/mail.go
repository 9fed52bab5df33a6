// Package mail sends plain e-mails through one SMTP server, which is configured. It knows no users.
package mail

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"net/smtp"
	"strings"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// Config is the SMTP server.
type Config struct {
	// Address is host:port; empty sends no mail.
	Address string
	// From is the address of the sender, such as Berth <berth@example.org>.
	From     string
	Username string
	Password chassis.Secret
	// TLS is starttls (the default), tls (from the first byte on) or none, which is for a server on the same machine.
	TLS string `config:"tls"`
}

// sendTimeout bounds one e-mail.
const sendTimeout = 30 * time.Second

// Validate reports the first value that cannot be used.
func (c Config) Validate() error {
	if c.Address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		return fault.Invalidf("mail.address %q is no address", c.Address).WithNext("set it to host:port, such as smtp.example.org:587")
	}
	if _, err := mail.ParseAddress(c.From); err != nil {
		return fault.Invalidf("mail.from %q is no address", c.From).WithNext("set it to an address such as Berth <berth@example.org>")
	}
	switch c.TLS {
	case "", "starttls", "tls", "none":
	default:
		return fault.Invalidf("mail.tls is %q", c.TLS).WithNext("choose starttls, tls or none")
	}
	if c.TLS == "none" && c.Username != "" {
		return fault.Invalidf("mail.username would be sent in the clear").WithNext("choose starttls or tls")
	}
	return nil
}

// Sender sends e-mails.
type Sender struct {
	c Config
	// roots verify the server; nil is the system's.
	tls *tls.Config
}

// New makes a sender of a valid configuration; nil when there is no server.
func New(c Config) *Sender {
	if c.Address == "" {
		return nil
	}
	host, _, _ := net.SplitHostPort(c.Address)
	return &Sender{c: c, tls: &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}}
}

// Send sends a text to one address. It opens a connection of its own.
func (s *Sender) Send(ctx context.Context, to, subject, text string) error {
	from, err := mail.ParseAddress(s.c.From)
	if err != nil {
		return fmt.Errorf("read the sender's address: %w", err)
	}
	if strings.ContainsAny(to, "\r\n<>, ") || strings.ContainsAny(subject, "\r\n") {
		return fault.Invalidf("%.80q is no address for e-mail", to)
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.c.Address)
	if err != nil {
		return fmt.Errorf("reach the mail server: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if s.c.TLS == "tls" {
		conn = tls.Client(conn, s.tls)
	}
	c, err := smtp.NewClient(conn, s.tls.ServerName)
	if err != nil {
		return fmt.Errorf("greet the mail server: %w", err)
	}
	defer c.Close()
	if err := s.deliver(c, from.Address, to, message(from, to, subject, text)); err != nil {
		return fmt.Errorf("send an e-mail by %s: %w", s.c.Address, err)
	}
	return nil
}

func (s *Sender) deliver(c *smtp.Client, from, to string, message []byte) error {
	if s.c.TLS == "" || s.c.TLS == "starttls" {
		if err := c.StartTLS(s.tls); err != nil {
			return err
		}
	}
	if s.c.Username != "" {
		if err := c.Auth(smtp.PlainAuth("", s.c.Username, s.c.Password.Reveal(), s.tls.ServerName)); err != nil {
			return err
		}
	}
	if err := c.Mail(from); err != nil {
		return err
	}
	if err := c.Rcpt(to); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(message); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return c.Quit()
}

// message is an e-mail as RFC 5322 wants it.
func message(from *mail.Address, to, subject, text string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "From: %s\r\nTo: <%s>\r\nSubject: %s\r\nDate: %s\r\n", from, to, mime.QEncoding.Encode("utf-8", subject),
		time.Now().Format(time.RFC1123Z))
	b.WriteString("MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n" +
		"Auto-Submitted: auto-generated\r\n\r\n")
	w := quotedprintable.NewWriter(&b)
	_, _ = w.Write([]byte(strings.ReplaceAll(text, "\n", "\r\n"))) // a buffer takes everything
	_ = w.Close()
	return b.Bytes()
}
