// Package run keeps a command under a lease: it starts the command once the lease is proven, and sees to it that nothing of
// it is alive any more when somebody else may begin.
//
// Four things stand behind that promise. Every process of the command inherits a locked file, so that the kernel says when
// the last one is gone. They form a process group and are descendants of a supervisor that adopts orphans, so that all of
// them are found. The command dies with its supervisor (Pdeathsig). And a second small process, the reaper, sees the age of
// the newest proof in a shared page and kills the command when it is too old or the supervisor is gone: it works while the
// supervisor is killed, stopped, or stuck.
//
// The command's output is its own: nothing is pumped through the supervisor, so a full pipe can hold up the command and
// nothing else. Exits never wait for a log.
package run
