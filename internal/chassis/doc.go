// Package chassis is the frame every Berth process stands in: services with explicit
// states, groups that start and stop them in order, logs, health, metrics, strict layered
// configuration, redacted secrets, the clock and the build's version.
//
// It knows nothing about sessions or agents and holds no business rule. Every role and
// cmd/berth call it; it imports only fault.
package chassis
