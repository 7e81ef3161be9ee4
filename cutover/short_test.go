//go:build !long

package cutover_test

// long is set by the build tag of the full matrices.
const long = false
