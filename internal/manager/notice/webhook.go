package notice

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// message is the body of a webhook; api/notice reads it.
type message struct {
	ID      string   `json:"id"`
	Kind    string   `json:"kind"`
	At      string   `json:"at"`
	Subject *subject `json:"subject"`
	Reason  string   `json:"reason,omitempty"`
	Text    string   `json:"text"`
}

// subject is what a notice tells of.
type subject struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Name string `json:"name"`
}

// The header fields of a webhook.
const (
	headerSignature = "Berth-Signature"
	headerID        = "Berth-Notice-Id"
)

func bodyOf(r dbgen.ClaimNoticesRow) ([]byte, error) {
	m := message{ID: r.NoticeID, Kind: r.Kind, At: r.At.UTC().Format(time.RFC3339), Reason: r.Reason, Text: r.Words}
	if r.SubjectKind != "" {
		m.Subject = &subject{r.SubjectKind, r.Subject, r.Name}
	}
	return json.Marshal(m)
}

// sign is the value of the header of a body: when it was signed, and the HMAC-SHA256 of "TIME.BODY" with the secret.
func sign(secret seal.Secret, now time.Time, body []byte) string {
	at := strconv.FormatInt(now.Unix(), 10)
	h := hmac.New(sha256.New, []byte(secret.Reveal()))
	h.Write([]byte(at + "."))
	h.Write(body)
	return "t=" + at + ",v1=" + hex.EncodeToString(h.Sum(nil))
}

// post sends a notice to a webhook. What does not answer with a status of success has not taken it.
func post(ctx context.Context, c *callback.Client, address string, secret seal.Secret, r dbgen.ClaimNoticesRow, now time.Time) error {
	body, err := bodyOf(r)
	if err != nil {
		return fmt.Errorf("encode a notice: %w", err)
	}
	status, err := c.Post(ctx, address, http.Header{"User-Agent": {"berth-webhook/1"}, headerID: {r.NoticeID},
		headerSignature: {sign(secret, now, body)}}, body)
	switch {
	case err != nil:
		return unreachable(err)
	case status >= 300 && status < 400:
		return fmt.Errorf("the receiver answered %d: redirects are not followed", status)
	case status < 200 || status > 299:
		return fmt.Errorf("the receiver answered %d %s", status, http.StatusText(status))
	}
	return nil
}

// unreachable is an error of a request in words for the user who named the address. They tell nothing of the network that managers are in:
// neither where a name leads, nor who was asked for it.
func unreachable(err error) error {
	if fault.Is(err, fault.Denied) {
		return fault.Deniedf("the address leads where webhooks may not go: into a private network or to the platform itself")
	}
	if fault.Is(err, fault.Invalid) {
		return fault.Invalidf("the address is not one of HTTP")
	}
	var late net.Error
	switch {
	case is[*net.DNSError](err):
		return errors.New("the name in the address cannot be resolved")
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout():
		return errors.New("the receiver did not answer in time")
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("the receiver refused the connection")
	case is[*tls.CertificateVerificationError](err):
		return errors.New("the receiver's certificate is not trusted, or is for another name")
	}
	return errors.New("the connection to the receiver failed")
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// oneLine is text for a header of an e-mail.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
