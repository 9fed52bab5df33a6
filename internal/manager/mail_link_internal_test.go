package manager

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// E-mails lead to the page of the web server unless the operator has one.
func TestWhereEMailsLead(t *testing.T) {
	t.Parallel()
	require.Empty(t, Config{}.mailLink())
	c := Config{WebOrigins: []string{"https://berth.example.org", "https://other.example.org"}}
	require.Equal(t, "https://berth.example.org/server/{kind}?token={token}", c.mailLink())
	c.MailLink = "https://example.org/{kind}/{token}"
	require.Equal(t, c.MailLink, c.mailLink())
}
