// Package host is what runs on a validator host: the agent that an operator's
// qnetops starts over SSH as `qnetops host`, and the client half that talks to it.
//
// The agent is the only writer. It keeps a fence (one record per host that names
// the fleet, the store, the owner and the epoch of the last accepted claim),
// works through local transactions (replace, put back, finish) with a log on the
// host, and runs as two processes, so that either finishes or undoes a
// transaction when the connection, the other process or the Docker daemon dies.
// The rule above all others: never two running containers on one data directory.
//
// Values of environment variables stay on the host: everything that leaves it
// carries names only. The exceptions are QNET_LOG_LEVEL and QNET_HALT_HEIGHT, which
// are public and are let through as numbers alone.
package host
