package app

import (
	"slices"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// installable returns the well-known apps that nobody declared. They are listed, and start, while the session has a program
// for them: `pip install` is enough. Their ports are chosen once, beside those of others, because circuits name them.
func installable(others []run.AppPort) []run.AppPort {
	var out []run.AppPort
	taken := map[int]bool{}
	known := func(name string) bool {
		return slices.ContainsFunc(others, func(o run.AppPort) bool { return o.Name == name }) ||
			slices.ContainsFunc(out, func(o run.AppPort) bool { return o.Name == name })
	}
	for _, o := range others {
		for _, p := range o.Ports {
			taken[p] = true
		}
	}
	for _, b := range builtins() {
		if slices.ContainsFunc(b.Names, known) {
			continue
		}
		port := b.Port
		for taken[port] {
			port++
		}
		taken[port] = true
		out = append(out, run.AppPort{Name: b.Names[0], Protocol: run.AppHTTP, Ports: []int{port}})
	}
	return out
}

// notInstalled says how a well-known app that nobody declared may be had.
func notInstalled(name, install string) error {
	return fault.NotFoundf("the session has no program for app %s", name).WithReason("app-missing").
		WithNext("install it in the session (%s) and start it again", install)
}
