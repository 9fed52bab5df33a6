package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// maxNamed bounds how many of those who hold too much are named.
const maxNamed = 3

// pressure notes limits that are lower than what is held: they end nothing and admit nothing new.
func (m *maker) pressure() {
	changes := map[Key]Attrs{}
	for _, c := range m.out.Changes {
		if c.Kind != Members && c.Kind != Access {
			changes[c.Key()] = c.To
		}
	}
	// Who has which policy afterwards.
	users := map[Key][]Key{}
	for _, key := range slices.Concat(m.now.sorted(User), m.now.sorted(Project)) {
		of := m.after(key, changes)
		if key.Kind == Project {
			users[Key{ProjectPolicy, "", of["policy"]}] = append(users[Key{ProjectPolicy, "", of["policy"]}], key)
			continue
		}
		users[Key{UserPolicy, "", of["policy"]}] = append(users[Key{UserPolicy, "", of["policy"]}], key)
		users[Key{KeypairPolicy, "", of["keypair_policy"]}] = append(users[Key{KeypairPolicy, "", of["keypair_policy"]}], key)
	}
	for i := range m.out.Changes {
		c := &m.out.Changes[i]
		var over []string
		check := func(k Key, limits Attrs) {
			if o := m.now.Objects[k]; o != nil {
				if words := m.exceeds(o, limits); words != "" {
					over = append(over, k.Name+" ("+words+")")
				}
			}
		}
		switch c.Kind {
		case KeypairPolicy, UserPolicy, ProjectPolicy:
			for _, k := range users[c.Key()] {
				check(k, c.To)
			}
		case Domain, Project:
			check(c.Key(), Attrs{"total": c.To["total"]})
			if p, ok := c.To["policy"]; ok {
				check(c.Key(), m.after(Key{ProjectPolicy, "", p}, changes))
			}
		case User:
			for name, kind := range map[string]Kind{"policy": UserPolicy, "keypair_policy": KeypairPolicy} {
				if p, ok := c.To[name]; ok {
					check(c.Key(), m.after(Key{kind, "", p}, changes))
				}
			}
		}
		if len(over) == 0 {
			continue
		}
		more := ""
		if n := len(over) - maxNamed; n > 0 {
			over, more = over[:maxNamed], fmt.Sprintf(" and %d more", n)
		}
		c.Notes = append(c.Notes, "more than that is held now by "+strings.Join(over, ", ")+more+
			": nothing ends, and nothing new is admitted until it is less")
	}
}

// held notes which sessions wait of those who become inactive: the scheduler holds them (scheduler.WaitsForOwner).
func (m *maker) held() {
	for i := range m.out.Changes {
		c := &m.out.Changes[i]
		if o := m.now.Objects[c.Key()]; c.ends() && o != nil && o.Waiting > 0 {
			c.Notes = append(c.Notes, counted(o.Waiting, "session")+" of it waiting to start "+waits)
		}
	}
}

// exceeds says in words what an object holds more of than limits allow.
func (m *maker) exceeds(o *Object, limits Attrs) string {
	var words []string
	for _, name := range []string{"total", "resources"} {
		of, err := Decode[map[string]string](limits[name])
		if limits[name] == "" || err != nil {
			continue
		}
		for _, slot := range sortedKeys(of) {
			s := cluster.SlotName(slot)
			most, err := cluster.ParseAmount(cluster.KindOf(s, m.now.Slots), of[slot])
			if err == nil && o.Held[s] > most {
				words = append(words, slot+" "+amount(s, o.Held[s]))
			}
		}
	}
	for _, n := range []struct {
		name, what string
		has        int
	}{{"max_sessions", "session", o.Sessions}, {"max_folders", "folder", o.Folders}} {
		if most, err := strconv.Atoi(limits[n.name]); err == nil && most > 0 && n.has > most {
			words = append(words, counted(n.has, n.what))
		}
	}
	return strings.Join(words, ", ")
}
