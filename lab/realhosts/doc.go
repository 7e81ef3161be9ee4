// Package realhosts is the hosts backend of the lab: N hosts on one Linux machine, each with a real OpenSSH
// server and a real Docker engine, a local registry to pull from, and the simulated node in images built FROM
// scratch. It needs root.
//
// A host is a set of namespaces (mount, pid, net, uts, ipc) around one small init process:
//
//   - its root is a folder of the lab, DIR/hosts/<id>/root, in which only /usr is the machine's own (read-only).
//     /etc, /var, /run, /root, /opt, /home and /tmp belong to the host, so nothing it writes lands outside DIR, and
//     everything is visible to a test from outside at the same path below that folder;
//   - its pid namespace makes cutting the power one kill: when init dies the kernel kills sshd, dockerd,
//     containerd, every container and every agent process, and the mounts go with the mount namespace. No mount
//     of a lab ever exists in the machine's own mount namespace;
//   - one veth pair joins it to the lab's bridge, host i at .10+i, the bridge with the registry at .1.
//
// Entering a host is nsenter by the pid of its init. `ip netns exec` is not used: it remounts /sys, and dockerd
// then finds no cgroups.
//
// What Up made is recorded in DIR/realhosts.json before it is made, so that Down works from any process and after
// a crash of the one that called Up. Processes are never trusted by pid alone: the start time must match.
package realhosts
