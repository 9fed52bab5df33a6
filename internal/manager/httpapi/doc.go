// Package httpapi is the manager's REST and streaming interface as the official clients speak it:
// routes, decoding, authentication by signature, encoding, and the one table from faults to
// problem documents.
//
// It holds no rules and no SQL: every decision is a call of one of the nouns. It is used by the
// manager role, which serves the handler that New returns; see NewServer for the timeouts it needs.
//
// One file per group of routes; a route's handler decodes with params, calls one method of a
// noun and encodes. Whatever it returns as an error becomes a problem document in respondError.
package httpapi
