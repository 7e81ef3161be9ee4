// Package simnode is the simulated QNet node of the lab: one chain model and
// one process model, kept to the facts of a real node (endpoints with their
// exact shapes and traps, log lines, environment variables, exit codes, boot
// rules, a data directory that survives restarts).
//
// [Run] is the whole node. It can be a goroutine under an in-memory Docker
// engine, also inside a testing/synctest bubble, or the main of a real
// container with [TCP] transport between hosts. It reads the clock and waits
// only through package time, never spins, and leaves no goroutine behind.
//
// All node times (block, polls, timeouts, boot waits, audit, rate-limit
// windows) scale by one factor: the lab's block time over one second.
//
// Certificates are served with ML-DSA-65 signatures, made in one place (sign.go).
// Which fact each part models, and the test that holds it, is
// listed in lab/FIDELITY.md.
package simnode
