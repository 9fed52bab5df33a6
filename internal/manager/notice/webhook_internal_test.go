package notice

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// What users are told of a request that failed says nothing of the network that managers are in.
func TestErrorsOfWebhooksTellNothingOfTheNetwork(t *testing.T) {
	t.Parallel()
	inside := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 443}
	dial := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Source: inside, Addr: inside, Err: err}
	}
	for want, err := range map[string]error{
		"the address leads where webhooks may not go: into a private network or to the platform itself": dial(
			fault.Deniedf("callbacks and webhooks may not go to the private address 10.1.2.3")),
		"the address is not one of HTTP":             fault.Invalidf("10.1.2.3"),
		"the receiver did not answer in time":        fmt.Errorf("10.1.2.3: %w", context.DeadlineExceeded),
		"the name in the address cannot be resolved": dial(&net.DNSError{Err: "no such host", Server: "10.1.2.3:53", IsTimeout: true}),
		"the receiver refused the connection":        dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		"the receiver's certificate is not trusted, or is for another name": &tls.CertificateVerificationError{
			Err: x509.UnknownAuthorityError{}},
		"the connection to the receiver failed": dial(errors.New("reset by 10.1.2.3")),
	} {
		told := unreachable(err)
		require.EqualError(t, told, want)
		require.Equal(t, fault.Is(err, fault.Denied), fault.Is(told, fault.Denied), "what is refused is not tried again")
	}
	require.EqualError(t, unreachable(dial(os.ErrDeadlineExceeded)), "the receiver did not answer in time")
}
