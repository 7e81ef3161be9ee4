// Package lease gives one process at a time the right to change a fleet, and a number that only grows.
//
// The right is a lock that the kernel (or the Postgres session) drops when its holder dies, so a killed operator never
// blocks the next one. The number, the epoch, is what makes it safe: hosts refuse a smaller one than they have seen, and the
// journal refuses to write under one. A holder that was paused and wakes up after it lost the lease can therefore do no
// harm, whatever it still believes.
//
// Holding a Token is the proof that lets a caller write to a host; reading needs none.
package lease
