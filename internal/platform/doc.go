// Package platform puts roles together in one process: the whole cluster of `berth up`, a role that runs alone, and the parts from
// which testkit builds its clusters. It owns the layout of the state directory, the configuration of all roles in one file, and the
// control socket by which a running cluster tells how it is.
//
// It decides nothing about sessions; what a role does is in its package. Package cmd/berth calls it, and testkit.
package platform
