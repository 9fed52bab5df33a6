package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const isc = `ISC License

Copyright (c) 2026 Somebody

Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted,
provided that the above copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED
WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR
CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT,
NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`

const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License as
published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.
`

func TestLicences(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		bad   string
	}{
		"allowed":       {map[string]string{"LICENSE": isc}, ""},
		"not allowed":   {map[string]string{"COPYING": gpl}, "is not allowed"},
		"one of two":    {map[string]string{"LICENSE": isc, "LICENSE.md": gpl}, "is not allowed"},
		"none":          {map[string]string{"README.md": isc}, "no known licence"},
		"unknown":       {map[string]string{"LICENSE": "You may do what I like."}, "no known licence"},
		"documentation": {map[string]string{"LICENSE": isc, "LICENSE.docs": gpl}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range c.files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			bad := examine([]part{{Path: "example.org/m", Version: "v1.0.0", Dir: dir}})
			if c.bad == "" {
				require.Empty(t, bad)
				return
			}
			require.Len(t, bad, 1)
			require.Contains(t, bad[0], c.bad)
		})
	}
	require.Len(t, examine([]part{{Path: "example.org/m", Dir: filepath.Join(t.TempDir(), "missing")}}), 1)
}

func TestBillOfMaterials(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "berth.cdx.json")
	require.NoError(t, write(file, "v1.2.3", append([]part{{Path: "example.org/m", Version: "v1.0.0", Dir: "x", licences: []string{"MIT"}}},
		carried...)))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var doc struct {
		SpecVersion string
		Metadata    struct{ Component struct{ Version string } }
		Components  []struct{ Name, Version, Purl string }
	}
	require.NoError(t, json.Unmarshal(text, &doc))
	require.Equal(t, "1.6", doc.SpecVersion)
	require.Equal(t, "v1.2.3", doc.Metadata.Component.Version)
	require.Len(t, doc.Components, 2+len(carried))
	require.Equal(t, "pkg:golang/example.org/m@v1.0.0", doc.Components[1].Purl)
	require.Equal(t, "PostgreSQL", doc.Components[2].Name)
	require.Error(t, write("", "v1", nil))
}
