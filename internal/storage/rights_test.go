package storage_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/storage"
	wire "berth.dev/berth/internal/wire/storage"
)

// tell pushes epochs as a manager does.
func (n *node) tell(epochs map[string]int64) {
	n.t.Helper()
	first := read[wire.RightsReply](n.t, n.ask("POST", wire.PathRights, wire.RightsRequest{Epochs: epochs}, 200))
	require.False(n.t, first.Again)
	last := read[wire.RightsReply](n.t, n.ask("POST", wire.PathRights, wire.RightsRequest{Boot: first.Boot, Complete: true}, 200))
	require.Equal(n.t, first.Boot, last.Boot)
}

func TestTokensEndWithTheirRights(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	n := run(t, cfg, storage.Deps{})
	n.tell(map[string]int64{"user:u": 7, "folder:" + folderID: 3})
	n.ask("POST", wire.PathFolderCreate, request(""), 204)
	n.ask("POST", wire.PathUpload, request(`,"relpath":"f","size":0,"rights":{"user":"u"}`), 200)
	download := func(rights string) (int, string) {
		token := read[wire.TokenReply](t, n.ask("POST", wire.PathDownload, request(`,"relpath":"f"`+rights), 200)).Token
		resp, err := client.Get(n.ClientURL() + "/download?token=" + token)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	const now = `,"rights":{"user":"u","user_epoch":7,"folder_epoch":3}`
	status, body := download(now)
	require.Equal(t, 200, status, body)
	for name, rights := range map[string]string{
		"of the user before":     `,"rights":{"user":"u","user_epoch":6,"folder_epoch":3}`,
		"of the folder before":   `,"rights":{"user":"u","user_epoch":7,"folder_epoch":2}`,
		"of an older manager":    "",
		"of another user's turn": `,"rights":{"user":"u","user_epoch":0,"folder_epoch":9}`,
	} {
		status, body = download(rights)
		require.Equal(t, 403, status, name)
		require.Contains(t, body, "the rights of the user or of the folder have changed", name)
	}
	n.tell(map[string]int64{"share:u:" + folderID: 12})
	status, _ = download(now)
	require.Equal(t, 403, status)
	status, body = download(`,"rights":{"user":"u","user_epoch":7,"folder_epoch":3,"share_epoch":12}`)
	require.Equal(t, 200, status, body)
	// Epochs only grow: a late push of an older one changes nothing.
	n.tell(map[string]int64{"share:u:" + folderID: 11})
	status, _ = download(now)
	require.Equal(t, 403, status)
}

func TestAProxyThatWasStartedAgainAsksForAll(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	n := run(t, cfg, storage.Deps{})
	answer := read[wire.RightsReply](t, n.ask("POST", wire.PathRights, wire.RightsRequest{Boot: "another life", Complete: true}, 200))
	require.True(t, answer.Again)
	require.NotEqual(t, "another life", answer.Boot)
	n.send("POST", wire.PathRights, "no key", wire.RightsRequest{})
	require.Equal(t, 401, n.send("POST", wire.PathRights, "no key", wire.RightsRequest{}).status, "managers alone tell rights")
	many := wire.RightsRequest{Epochs: map[string]int64{}}
	for i := range wire.MaxEpochs + 1 {
		many.Epochs[wire.UserSubject(string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)))] = 1
	}
	n.ask("POST", wire.PathRights, many, 400)
}

const folderID = "22222222-2222-2222-2222-222222222222"
