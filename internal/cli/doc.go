// Package cli holds the client verbs of the command line, one file per noun and verb; nouns with many verbs are packages
// below it, and what all share is package frame.
//
// It talks to a manager through package api only and holds no knowledge of the
// cluster's inside. Data goes to standard output, talk to standard error; every read
// knows --json; every error ends with the next command to try. cmd/berth adds the
// result of Commands to its root and hands the root to frame.Execute.
package cli
