//go:build unix

package simnode

import (
	"os"
	"syscall"
)

// tryLock takes the data directory's lock; false when another node has it.
func tryLock(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
