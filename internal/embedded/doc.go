// Package embedded runs the three services that a cluster needs when nobody gave it external
// ones: PostgreSQL as a managed child, etcd in this process, and Redis as a managed child or,
// where no server is installed, in this process.
//
// Everything it starts is private to one state directory: sockets instead of ports, no
// passwords to leak, files below the directory. It hands out addresses for the same clients
// that external services are reached with; nobody behind those clients can tell the
// difference. It is called by cmd/berth for `berth up`, and by tests.
package embedded
