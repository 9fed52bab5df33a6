// Package web carries the console inside the berth binary: what scripts/web.sh builds of the TypeScript beside this file.
//
// The console is embedded only with the build tag "console". Without the tag the package vets and tests on a fresh clone, and the web
// server shows a page that says how to build the console.
package web

import "io/fs"

// Console returns the files of the console, nil when the binary was built without it. Text is compressed by gzip; the names of such files
// end in ".gz" besides, except for index.html, which gets a nonce in each answer.
func Console() fs.FS { return console }
