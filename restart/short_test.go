//go:build !long

package restart

// long is set by the build tag of the full numbers.
const long = false
