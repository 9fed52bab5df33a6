package transfer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/transfer"
)

// TestUploadGoesOnWithAnotherToken is the story of a browser that was closed: its token is gone, the upload is not.
func TestUploadGoesOnWithAnotherToken(t *testing.T) {
	r := newRig(t)
	ask := func(q transfer.UploadRequest) (string, string, error) {
		q.Volume, q.Folder = "volume1", folder
		return r.s.UploadToken(t.Context(), q)
	}
	first, name, err := ask(transfer.UploadRequest{Path: "x", Size: 10})
	require.NoError(t, err)
	require.Equal(t, sessionOf(t, first), name)
	require.Equal(t, 204, r.patch(first, 0, []byte("12345")).status)

	second, again, err := ask(transfer.UploadRequest{Path: "x", Size: 10, Resume: name})
	require.NoError(t, err)
	require.Equal(t, name, again)
	require.EqualValues(t, 5, r.head(second).offset(t), "nothing is sent again")
	require.Equal(t, 204, r.patch(second, 5, []byte("67890")).status)
	require.Equal(t, "1234567890", r.read("x"))

	done, _, err := ask(transfer.UploadRequest{Path: "x", Size: 10, Resume: name})
	require.NoError(t, err, "who did not hear of the end hears it now")
	require.EqualValues(t, 10, r.head(done).offset(t))
}

func TestUploadThatIsNotThereCannotGoOn(t *testing.T) {
	r := newRig(t)
	tok, name, err := r.s.UploadToken(t.Context(), transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "x", Size: 10})
	require.NoError(t, err)
	require.Equal(t, 204, r.patch(tok, 0, []byte("12345")).status)
	for _, c := range []struct {
		name, resume string
		size         int64
		kind         fault.Kind
	}{
		{"never begun", "00112233445566778899aabbccddeeff", 10, fault.NotFound},
		{"no name of an upload", "../../etc/passwd", 10, fault.NotFound},
		{"the mark of another", name + "0", 10, fault.NotFound},
		{"a shorter file", name, 4, fault.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := r.s.UploadToken(t.Context(),
				transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "x", Size: c.size, Resume: c.resume})
			require.True(t, fault.Is(err, c.kind), "%v", err)
		})
	}
	require.EqualValues(t, 5, r.head(tok).offset(t), "the upload itself goes on")
}

// An upload belongs to its folder: whoever may write into another one cannot take it there.
func TestUploadGoesOnInItsFolderAlone(t *testing.T) {
	r := newRig(t)
	_, name, err := r.s.UploadToken(t.Context(), transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "x", Size: 10})
	require.NoError(t, err)
	other := folder
	other.Folder = "0e0e0e0e-0e0e-4e0e-8e0e-0e0e0e0e0e0e"
	require.NoError(t, r.v.CreateFolder(t.Context(), other, 0o700))
	_, _, err = r.s.UploadToken(t.Context(), transfer.UploadRequest{Volume: "volume1", Folder: other, Path: "x", Size: 10, Resume: name})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}
