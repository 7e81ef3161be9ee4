// Package fleet reaches the hosts of a fleet: the inventory hosts.toml, one
// verified SSH connection per host and run, reads of the node and of the Docker
// engine through channels of that connection, and the way to the host agent,
// through which alone a host is changed.
//
// # Reading
//
// Nothing has to be installed on a host to look at it. The node's HTTP port is
// reached through a direct-tcpip channel to loopback, the engine's unix socket
// through a direct-streamlocal channel. [Engine] has the read half only, and of
// that only what carries no environment of a container. What only an inspect
// knows is asked on the host: by the agent when it runs, otherwise by
// `docker inspect --format` with a fixed template that prints names and no
// values. Where sshd opens no channel, or the user may not open the socket, the
// agent answers the same reads.
//
// # Writing
//
// [Conn.Writer] needs a lease.Token, and gives the half of the agent's client
// that changes things. There is no other way.
//
// # Connections
//
// Host keys come from known_hosts and are checked on every hop under the name
// that was dialled; the algorithms asked for are those known_hosts holds, since
// a host with several keys would otherwise show one that nobody recorded. A
// connection that dies stays dead: whether a command in flight was run cannot
// be known, so nothing reconnects by itself. [Fleet.Redial] is for callers that
// have decided what a second attempt means.
package fleet
