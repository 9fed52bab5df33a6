package folder

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/transfer"
	"berth.dev/berth/internal/cli/frame"
)

func TestPlaces(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]place{
		"data:":       {"data:", api.FolderPath{Folder: "data"}, true},
		"data:a/b:c":  {"data:a/b:c", api.FolderPath{Folder: "data", Path: "a/b:c"}, true},
		"./a:b":       {text: "./a:b"},
		"/tmp/a:b":    {text: "/tmp/a:b"},
		":x":          {text: ":x"},
		"plain":       {text: "plain"},
		".local:x/./": {".local:x/./", api.FolderPath{Folder: ".local", Path: "x/./"}, true},
	} {
		require.Equal(t, want, parsePlace(text))
	}
}

func TestProgressLines(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := newTransferProgress(&out, false)
	for _, e := range []transfer.Event{
		{Kind: transfer.Found, Path: "a", Size: 5},
		{Kind: transfer.Bytes, Path: "a", Size: 5},
		{Kind: transfer.Waiting, Reason: errors.New("x").Error()},
		{Kind: transfer.Waiting, Reason: "x"},
		{Kind: transfer.Skipped, Path: "l\x1b", Reason: "a symbolic link"},
		{Kind: transfer.Skipped, Path: "same", Size: 3},
		{Kind: transfer.Failed, Path: "b", Reason: "no"},
		{Kind: transfer.Done, Path: "a", Size: 5},
	} {
		p.seen(e)
	}
	p.clear()
	require.Equal(t, "trying again: x\nleft out \"l\\x1b\": a symbolic link\nb: no\n", out.String())
}

func TestUnfinishedCopiesAreKeptInTheCache(t *testing.T) {
	t.Parallel()
	home := ""
	v := &verbs{&frame.Frame{Now: time.Now, Getenv: func(k string) string { return map[string]string{"HOME": home}[k] }}}
	cmd := &cobra.Command{}
	require.Nil(t, v.resumeDir(cmd))
	home = t.TempDir()
	require.NotNil(t, v.resumeDir(cmd))
	info, err := os.Stat(filepath.Join(home, ".cache", "berth", "transfers"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}
