// Package run is the protocol between an agent (or, through it, the manager) and the
// runner, which is PID 1 of every container: Go types, routes, the frame format of
// its byte streams and a Client.
//
// The transport is plain HTTP/1.1 on a unix socket in a directory that agent and
// container share, so every call can be tried with curl:
//
//	curl --unix-socket DIR/run.sock -H "Authorization: Bearer $TOKEN" http://runner/v1/hello
//
// Requests and replies are JSON. The header Berth-Run-Version carries Version in both
// directions; a runner serves every version from MinVersion on, because containers outlive
// agents. A caller proves itself with the token of the mounted configuration file.
// A failure is a JSON Failure with the HTTP status of its kind.
//
// Full-duplex streams (terminal, exec) are one POST whose request body carries frames
// to the runner and whose reply body carries frames back, both at the same time; the same
// bytes also travel over an upgraded connection (Upgrade: berth-frames/1) for callers that
// want a raw socket.
//
// It is not the runner: that is internal/runner. It holds no state and starts no process.
package run
