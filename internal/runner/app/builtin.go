package app

import (
	_ "embed"
	"encoding/json"
	"slices"
	"sync"
)

//go:embed builtin.json
var builtinTable []byte

// builtin starts a well-known app in sessions that have its program but no definition of it. All of them listen on the loopback
// address alone and ask for no password: nobody comes there but through a tunnel. They keep their check that the
// origin of a page is the host it was asked from.
type builtin struct {
	Names      []string        `json:"names"`
	Port       int             `json:"port"`     // where nobody declares one
	Programs   []string        `json:"programs"` // the first that is there is {program}
	Install    string          `json:"install"`  // how it may be had
	Definition json.RawMessage `json:"definition"`
}

var builtins = sync.OnceValue(func() []builtin {
	var out []builtin
	if err := json.Unmarshal(builtinTable, &out); err != nil {
		panic("builtin.json: " + err.Error()) // a test reads it
	}
	return out
})

// choose finds what starts an app by a built-in definition: the first whose program look finds. install tells how to get
// one when there is none; it is empty for names that are not well known.
func choose(name string, look func(program string) (file string, ok bool)) (d Definition, file, install string, ok bool) {
	for _, b := range builtins() {
		if !slices.Contains(b.Names, name) {
			continue
		}
		for _, p := range b.Programs {
			if file, ok := look(p); ok {
				d, err := ParseDefinition(b.Definition)
				if err != nil {
					panic("builtin.json: " + err.Error()) // a test reads it
				}
				return d, file, "", true
			}
		}
		if install == "" {
			install = b.Install
		}
	}
	return Definition{}, "", install, false
}
