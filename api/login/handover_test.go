package login_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/login"
)

func TestCodesAreForOneCommandLine(t *testing.T) {
	t.Parallel()
	mine, other := handover(t), handover(t)
	code, err := login.Seal(mine.Key(), "the-token")
	require.NoError(t, err)
	require.NotContains(t, code, "the-token")
	token, err := mine.Open(code)
	require.NoError(t, err)
	require.Equal(t, api.Secret("the-token"), token)
	again, err := login.Seal(mine.Key(), "the-token")
	require.NoError(t, err)
	require.NotEqual(t, code, again)
	_, err = other.Open(code)
	require.Error(t, err)
	for _, bad := range []string{"", "x", code[1:], code[:len(code)-1], code + "AAAA", "-" + code[1:], "!!"} {
		_, err := mine.Open(bad)
		require.ErrorContains(t, err, "not of this login", "%q", bad)
	}
	for _, bad := range []string{"", "x", "AAAA", mine.Key() + "AA", "!!"} {
		_, err := login.Seal(bad, "t")
		require.Error(t, err, "%q", bad)
	}
}

func handover(t *testing.T) login.Handover {
	h, err := login.NewHandover()
	require.NoError(t, err)
	return h
}
