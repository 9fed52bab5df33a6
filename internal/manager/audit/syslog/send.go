package syslog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"berth.dev/berth/internal/fault"
)

// sendLimit bounds the sending of one batch.
const sendLimit = 15 * time.Second

// send brings messages to the receiver. Datagrams are sent and no more is known of them. On a stream all messages have the length before
// them (RFC 6587, 5425); then this side is closed, and the receiver's end of the connection says that it has read everything. What is not
// known to have arrived has failed, and is sent again.
func (c Config) send(ctx context.Context, messages [][]byte) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	scheme, place, err := c.split()
	if err != nil {
		return err
	}
	network := map[string]string{"udp": "udp", "tcp": "tcp", "tls": "tcp", "unix": "unixgram"}[scheme]
	conn, err := (&net.Dialer{}).DialContext(ctx, network, place)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", c.Address, err)
	}
	defer func() { _ = conn.Close() }()
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if scheme == "udp" || scheme == "unix" {
		for _, m := range messages {
			if _, err := conn.Write(m); err != nil {
				return fmt.Errorf("send to %s: %w", c.Address, err)
			}
		}
		return nil
	}
	if scheme == "tls" {
		secure, err := c.secure(place)
		if err != nil {
			return err
		}
		t := tls.Client(conn, secure)
		if err := t.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("connect to %s: %w", c.Address, err)
		}
		conn = t
	}
	var all []byte
	for _, m := range messages {
		all = append(append(strconv.AppendInt(all, int64(len(m)), 10), ' '), m...)
	}
	if _, err := conn.Write(all); err != nil {
		return fmt.Errorf("send to %s: %w", c.Address, err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return fmt.Errorf("send to %s: %w", c.Address, err)
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(conn, 64<<10)); err != nil {
		return fmt.Errorf("%s did not end the connection, so it is not known whether it has read everything: %w", c.Address, err)
	}
	return nil
}

func (c Config) secure(place string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(place)
	if err != nil {
		return nil, err
	}
	out := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if c.CA == "" {
		return out, nil
	}
	text, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, fault.Invalidf("the certificates of audit_syslog.ca cannot be read").WithCause(err)
	}
	out.RootCAs = x509.NewCertPool()
	if !out.RootCAs.AppendCertsFromPEM(text) {
		return nil, errors.New("audit_syslog.ca holds no certificate")
	}
	return out, nil
}
