package restart

import "os"

// full says whether tests run all their seeds and cases: with the tag long, or QNETOPS_LONG set. Else a part of them keeps the
// package's tests under a minute with the race detector.
func full() bool { return long || os.Getenv("QNETOPS_LONG") != "" }

// Seeds is how many of so many seeds a property test takes.
func Seeds(all uint64) uint64 {
	if full() {
		return all
	}
	return all / 6
}
