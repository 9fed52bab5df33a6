package chassis_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
)

type managerConfig struct {
	Listen       string
	MaxBodyBytes int64
	Lease        time.Duration
	Origins      []string
	Token        chassis.Secret
	Labels       map[string]string
	HTTP2        struct{ Enabled bool }
	Hook         func() `config:"-"`
}

type rootConfig struct {
	Log     chassis.LogConfig
	Manager managerConfig
}

func defaults() rootConfig {
	return rootConfig{
		Log:     chassis.DefaultLogConfig(),
		Manager: managerConfig{Listen: "127.0.0.1:8081", MaxBodyBytes: 1 << 20, Lease: 30 * time.Second},
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berth.toml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestLayersOverrideInOrder(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "[manager]\nlisten = \"file\"\nlease = \"5s\"\norigins = [\"a\", \"b\"]\nmax_body_bytes = 7\n[manager.labels]\n"+
		"zone = \"x\"\n[manager.http2]\nenabled = true\n")
	c, err := chassis.Load(defaults(), chassis.Sources{
		File: path,
		Environ: []string{"BERTH_MANAGER__LISTEN=environment", "BERTH_MANAGER__MAX_BODY_BYTES=8", "BERTH_MANAGER__TOKEN=s3cret",
			"BERTH_ADMIN_EMAIL=x", "HOME=/"},
		Flags: map[string]string{"manager.listen": "flag"},
	})
	require.NoError(t, err)
	require.Equal(t, "flag", c.Value.Manager.Listen)
	require.Equal(t, int64(8), c.Value.Manager.MaxBodyBytes)
	require.Equal(t, 5*time.Second, c.Value.Manager.Lease)
	require.Equal(t, []string{"a", "b"}, c.Value.Manager.Origins)
	require.Equal(t, map[string]string{"zone": "x"}, c.Value.Manager.Labels)
	require.True(t, c.Value.Manager.HTTP2.Enabled)
	require.Equal(t, "s3cret", c.Value.Manager.Token.Reveal())
	require.Equal(t, "info", c.Value.Log.Level)
}

func TestUnknownAndUnreadableKeysAreNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file    string
		environ []string
		want    []string
	}{
		"typo in file": {file: "[manager]\nlistn = \"x\"\n",
			want: []string{"berth.toml", `"manager.listn"`, `did you mean "manager.listen"`}},
		"typo in variable": {environ: []string{"BERTH_MANAGER__LEESE=1s"},
			want: []string{"BERTH_MANAGER__LEESE", "did you mean BERTH_MANAGER__LEASE"}},
		"single underscore": {environ: []string{"BERTH_MANAGER_LISTEN=x"},
			want: []string{"BERTH_MANAGER_LISTEN is not read", "BERTH_MANAGER__LISTEN"}},
		"wrong section": {file: "[log]\nlisten = \"x\"\n", want: []string{`did you mean "manager.listen"`}},
		"duration unit": {file: "[manager]\nlease = 30\n", want: []string{"manager.lease", "with its unit"}},
		"not a number": {environ: []string{"BERTH_MANAGER__MAX_BODY_BYTES=many"},
			want: []string{"manager.max_body_bytes", "a whole number"}},
		"syntax":             {file: "[manager\n", want: []string{"cannot be read", "line 1"}},
		"hidden field":       {file: "[manager]\nhook = 1\n", want: []string{`unknown key "manager.hook"`}},
		"value for a table":  {file: "log = 3\n", want: []string{`unknown key "log"`}},
		"table for a value":  {file: "[manager.listen]\nx = 1\n", want: []string{`"manager.listen.x"`}},
		"secret never shown": {file: "[manager.token]\npassword = 1\n", want: []string{"manager.token"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := chassis.Sources{Environ: tc.environ}
			if tc.file != "" {
				src.File = writeFile(t, tc.file)
			}
			_, err := chassis.Load(defaults(), src)
			require.Error(t, err)
			for _, w := range tc.want {
				require.Contains(t, err.Error(), w)
			}
		})
	}
}

func TestPrintIsReadableAgainAndRedacts(t *testing.T) {
	t.Parallel()
	d := defaults()
	d.Manager.Token = chassis.NewSecret("hunter2")
	d.Manager.Labels = map[string]string{"zone": "a b", "rack": "1"}
	c, err := chassis.Load(d, chassis.Sources{Environ: []string{"BERTH_LOG__LEVEL=debug"}})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, c.Print(&out))
	require.NotContains(t, out.String(), "hunter2")
	require.Contains(t, out.String(), "# from environment variable BERTH_LOG__LEVEL")
	again, err := chassis.Load(rootConfig{}, chassis.Sources{File: writeFile(t, out.String())})
	require.NoError(t, err, out.String())
	c.Value.Manager.Token, again.Value.Manager.Token = chassis.Secret{}, chassis.Secret{}
	c.Value.Manager.Origins = []string{}
	require.Equal(t, c.Value, again.Value)
}

func TestSecretNeverPrints(t *testing.T) {
	t.Parallel()
	type holder struct {
		Public  chassis.Secret
		private chassis.Secret
	}
	s := chassis.NewSecret("hunter2")
	h := holder{s, s}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "secret", s, "holder", h)
	asJSON, err := json.Marshal(h)
	require.NoError(t, err)
	texts := []string{string(asJSON), logged.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, s), fmt.Sprintf(verb, h), fmt.Sprintf(verb, &h))
	}
	for _, text := range texts {
		require.NotContains(t, text, "hunter2")
		require.NotContains(t, text, "68756e74657232")
	}
	require.Equal(t, "hunter2", h.private.Reveal())
	require.True(t, s.Equal(chassis.NewSecret("hunter2")))
	require.False(t, s.Equal(chassis.NewSecret("hunter3")))
}

type place struct {
	Backend string
	Path    string
	Options map[string]string
}

type withPlaces struct {
	Store struct{ Places map[string]place }
}

func TestTablesOfTablesAreReadStrictlyAndPrinted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "c.toml")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("[store.places.one]\nbackend = \"a\"\npath = \"/x\"\n[store.places.two]\noptions = {\"k.l\" = \"it's\"}\n")
	c, err := chassis.Load(withPlaces{}, chassis.Sources{File: file})
	require.NoError(t, err)
	require.Equal(t, place{Backend: "a", Path: "/x"}, c.Value.Store.Places["one"])
	var b bytes.Buffer
	require.NoError(t, c.Print(&b))
	write(b.String())
	again, err := chassis.Load(withPlaces{}, chassis.Sources{File: file})
	require.NoError(t, err, b.String())
	require.Equal(t, "it's", again.Value.Store.Places["two"].Options["k.l"])
	require.Equal(t, "/x", again.Value.Store.Places["one"].Path)
	write("[store.places.one]\npaath = \"/x\"\n")
	_, err = chassis.Load(withPlaces{}, chassis.Sources{File: file})
	require.ErrorContains(t, err, "tables with the keys backend, path, options")
}
