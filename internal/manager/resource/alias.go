package resource

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// Aliases are names that people write instead of slots: gpu for cuda.device or cuda.shares. Each names the families of slots that it
// means; the family of cuda.device is cuda. What is stored are real slots only.
type Aliases map[string][]string

// EveryOther in an alias means the families that no other alias names.
const EveryOther = "*"

// DefaultAliases are those of a cluster whose administrators have set none.
func DefaultAliases() Aliases { return Aliases{"gpu": {"cuda", "rocm"}, "npu": {EveryOther}} }

// The slots of a family that an alias may become: whole devices, and parts of devices.
const (
	wholeDevices = ".device"
	partDevices  = ".shares"
)

// Offer is what a resource group has: the slots of its agents with how they are counted. Group "" is every group.
type Offer struct {
	Group string
	Slots map[cluster.SlotName]cluster.SlotKind
}

func (o Offer) place() string {
	if o.Group == "" {
		return "this cluster"
	}
	return "resource group " + o.Group
}

// families are the slots of accelerators by their families.
func (o Offer) families() map[string][]cluster.SlotName {
	out := map[string][]cluster.SlotName{}
	for _, slot := range slices.Sorted(maps.Keys(o.Slots)) {
		// Network adapters serve accelerators and are none.
		if family, name, ok := strings.Cut(string(slot), "."); ok && name != "hca" {
			out[family] = append(out[family], slot)
		}
	}
	return out
}

// Named tells which of the names are aliases here; a slot of that name goes before an alias.
func (t Aliases) Named(o Offer, names []string) []string {
	var out []string
	for _, name := range names {
		_, alias := t[name]
		if _, slot := o.Slots[cluster.SlotName(name)]; alias && !slot {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// means reports whether an alias means a family.
func (t Aliases) means(alias, family string) bool {
	if slices.Contains(t[alias], family) {
		return true
	}
	return slices.Contains(t[alias], EveryOther) &&
		!slices.ContainsFunc(slices.Collect(maps.Values(t)), func(named []string) bool { return slices.Contains(named, family) })
}

// Slot is the slot that an amount of an alias means: whole devices where the amount is whole and the family has such a slot, else parts
// of devices. The other slots of the family are named, too: who asks for some of one by its alias wants nothing of them.
func (t Aliases) Slot(alias string, amount cluster.Amount, o Offer) (slot cluster.SlotName, others []cluster.SlotName, err error) {
	all := o.families()
	var here []string
	for _, family := range slices.Sorted(maps.Keys(all)) {
		if t.means(alias, family) {
			here = append(here, family)
		}
	}
	switch len(here) {
	case 0:
		return "", nil, fault.Invalidf("there is no %s in %s", alias, o.place()).WithNext("%s", o.has(all))
	case 1: // the one that is meant
	default:
		return "", nil, fault.Invalidf("%s is not one thing in %s: there are %s", alias, o.place(), strings.Join(here, " and ")).
			WithNext("write the slot: %s", names(all, here))
	}
	family := here[0]
	whole, part := cluster.SlotName(family+wholeDevices), cluster.SlotName(family+partDevices)
	_, hasWhole := o.Slots[whole]
	_, hasPart := o.Slots[part]
	switch {
	case hasWhole && amount%cluster.Milli == 0:
		slot = whole
	case hasPart:
		slot = part
	case hasWhole:
		return "", nil, fault.Invalidf("%s=%s cannot be had in %s: its devices are given whole (%s)", alias, amount, o.place(), whole).
			WithNext("ask for %s=%s", alias, cluster.Whole(amount.Units()+1))
	default:
		return "", nil, fault.Invalidf("%s in %s has no slot for whole devices and none for parts of them", alias, o.place()).
			WithNext("write the slot: %s", names(all, here))
	}
	for _, other := range all[family] {
		if other != slot {
			others = append(others, other)
		}
	}
	return slot, others, nil
}

// has says in words which accelerators there are.
func (o Offer) has(all map[string][]cluster.SlotName) string {
	if len(all) == 0 {
		return "it has no accelerators; see berth agent list, or choose another resource group"
	}
	return "it has " + names(all, slices.Sorted(maps.Keys(all)))
}

func names(all map[string][]cluster.SlotName, families []string) string {
	var out []string
	for _, family := range families {
		for _, slot := range all[family] {
			out = append(out, string(slot))
		}
	}
	return strings.Join(out, ", ")
}

// Real replaces aliases in requested amounts by slots. The other slots of an alias's family become 0 where nothing is said of them, so
// that a preset does not add to what was asked for.
func (t Aliases) Real(amounts map[string]string, o Offer) (map[string]string, error) {
	aliases := t.Named(o, slices.Collect(maps.Keys(amounts)))
	if len(aliases) == 0 {
		return amounts, nil
	}
	out, from := maps.Clone(amounts), map[string]string{}
	for _, alias := range aliases {
		delete(out, alias)
	}
	for _, alias := range aliases {
		amount, err := cluster.ParseAmount(cluster.SlotCount, amounts[alias])
		if err != nil {
			return nil, fmt.Errorf("resource %s: %w", alias, err)
		}
		if amount == 0 {
			for family, slots := range o.families() {
				for _, slot := range slots {
					if _, said := out[string(slot)]; !said && t.means(alias, family) {
						out[string(slot)] = "0"
					}
				}
			}
			continue
		}
		slot, others, err := t.Slot(alias, amount, o)
		if err != nil {
			return nil, err
		}
		other, twice := from[string(slot)]
		if _, said := amounts[string(slot)]; said {
			other, twice = string(slot), true
		}
		if twice {
			return nil, fault.Invalidf("%s and %s are the same slot", alias, other).WithNext("name it once")
		}
		out[string(slot)], from[string(slot)] = amount.String(), alias
		for _, x := range others {
			if _, said := out[string(x)]; !said {
				out[string(x)] = "0"
			}
		}
	}
	return out, nil
}

// RealIn replaces aliases by the slots of the first offer that has them all, and returns the groups of the offers where the same is meant.
// Nothing changes where no alias is named.
func (t Aliases) RealIn(amounts map[string]string, offers []Offer) (map[string]string, []string, error) {
	var out map[string]string
	var groups []string
	var refusal error
	for _, o := range offers {
		here, err := t.Real(amounts, o)
		switch {
		case err != nil && refusal == nil:
			refusal = err
		case err != nil:
		case out == nil:
			out, groups = maps.Clone(here), append(groups, o.Group)
		case same(out, here):
			maps.Copy(out, here) // what is 0 in one of them
			groups = append(groups, o.Group)
		}
	}
	if len(groups) == 0 {
		return nil, nil, refusal
	}
	return out, groups, nil
}

// same reports whether two requests ask for the same; what is not said and nothing are alike.
func same(a, b map[string]string) bool {
	some := func(m map[string]string) map[string]string {
		m = maps.Clone(m)
		maps.DeleteFunc(m, func(_, v string) bool { return v == "0" })
		return m
	}
	return maps.Equal(some(a), some(b))
}

// Bounds of a table of aliases.
const (
	maxAliases  = 16
	maxFamilies = 32
)

var aliasWord = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// check refuses a table that cannot be meant.
func (t Aliases) check() error {
	if len(t) > maxAliases {
		return fault.Invalidf("%d aliases are too many, %d are allowed", len(t), maxAliases)
	}
	every := ""
	for _, alias := range slices.Sorted(maps.Keys(t)) {
		if !aliasWord.MatchString(alias) || slices.Contains([]string{string(cluster.SlotCPU), string(cluster.SlotMem), "shmem"}, alias) {
			return fault.Invalidf("%.40q cannot be an alias of slots", alias).
				WithNext("use 1 to 32 lower-case letters, digits, - and _, and none of cpu, mem, shmem")
		}
		if n := len(t[alias]); n == 0 || n > maxFamilies {
			return fault.Invalidf("alias %s names %d families of slots", alias, n).WithNext("name 1 to %d, such as cuda, or *", maxFamilies)
		}
		for _, family := range t[alias] {
			switch {
			case family == EveryOther && every != "":
				return fault.Invalidf("aliases %s and %s both mean every other family", every, alias).WithNext("write * in one of them")
			case family == EveryOther:
				every = alias
			case !aliasWord.MatchString(family):
				return fault.Invalidf("alias %s: %.40q is no family of slots", alias, family).WithNext("write what is before the dot, such as cuda")
			}
		}
	}
	return nil
}

// ParseAliases reads a table as JSON: {"gpu": ["cuda", "rocm"], "npu": ["*"]}. The empty text is DefaultAliases.
func ParseAliases(text string) (Aliases, error) {
	if text == "" {
		return DefaultAliases(), nil
	}
	var t Aliases
	if err := json.Unmarshal([]byte(text), &t); err != nil || t == nil {
		return nil, fault.Invalidf("%.80q is no table of aliases", text).WithNext(`write it as {"gpu": ["cuda", "rocm"], "npu": ["*"]}`)
	}
	return t, t.check()
}

// settingAliases is the key of the table that administrators have set.
const settingAliases = "slot-aliases"

// ReadAliases reads the cluster's table.
func ReadAliases(ctx context.Context, q *store.Store) (Aliases, error) {
	raw, err := q.GetSetting(ctx, settingAliases)
	if store.Missing(err) {
		return DefaultAliases(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read setting %s: %w", settingAliases, err)
	}
	return ParseAliases(string(raw))
}

// SlotAliases tells what SetSlotAliases decided (superadmins, monitors).
func (s *Service) SlotAliases(ctx context.Context, a authz.Actor) (Aliases, error) {
	if err := authz.Cluster.Need(a, authz.See, authz.Object{}, "look at settings of the cluster"); err != nil {
		return nil, err
	}
	return ReadAliases(ctx, s.d.Store)
}

// SetSlotAliases says which slots people mean by names such as gpu (superadmins).
func (s *Service) SetSlotAliases(ctx context.Context, a authz.Actor, t Aliases) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "cluster.set-slot-aliases", "")
	defer end(&err)
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "set the aliases of slots"); err != nil {
		return err
	}
	if err := t.check(); err != nil {
		return err
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode aliases: %w", err)
	}
	if err := s.d.Store.SetSetting(ctx, settingAliases, raw); err != nil {
		return fmt.Errorf("store setting %s: %w", settingAliases, err)
	}
	return nil
}
