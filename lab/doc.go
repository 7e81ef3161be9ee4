// Package lab is the simulated fleet of the process backend: N hosts in one
// process, each with an SSH server, a Docker engine and a QNet node, joined by
// one chain. It needs neither root nor Docker.
//
// What the tool speaks to is real protocol on both ways of DESIGN.md 3.2: SSH
// with pinned host keys, the Docker API, the node's HTTP, and the host agent
// itself, which runs in-process as two killable processes. What a host does not
// know it refuses and records.
//
// A lab runs in memory, also inside a testing/synctest bubble, where it is
// reached through [Lab.Dial]; or on loopback ports after [Lab.Listen], for the
// command line. Faults are named (see [Kinds]) and injected one by one.
package lab
