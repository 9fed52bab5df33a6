// Package api is the public Go client of a Berth manager and the types of its wire.
//
// It speaks the signed REST, GraphQL, server-sent-events and WebSocket interface
// that the official Backend.AI clients use, plus the few extensions written down in
// docs/api-extensions.md. It holds no policy: it does not decide what to run, prints
// nothing and keeps no state beyond its connections. The command line, tests and
// programs of users call it; the manager shares its types. It imports nothing else
// of this module.
package api
