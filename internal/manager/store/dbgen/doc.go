// Package dbgen holds the queries of the manager as Go functions. sqlc generates everything else in it from store/queries; the
// packages of the manager call it within transactions of package store.
package dbgen
