// Package engine emulates the Docker Engine of one lab host.
//
// It speaks the Engine's HTTP API (1.41 by default, as shipped with engine
// 20.10, the oldest the tool supports) on any net.Conn, closely enough for the
// official client and for raw HTTP: shapes of inspect, conflicts, progress
// streams with errors inside HTTP 200, restart policies with their back-off,
// logs, events, networks, volumes. The shapes were compared with a real 20.10.
// What it does not know it refuses with 501 and records: a fake that guesses
// hides faults of its user.
//
// Containers run whatever the Runner starts. Times are the engine's own and do
// not scale with a lab's block time.
package engine
