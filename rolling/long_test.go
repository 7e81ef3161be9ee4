//go:build long

package rolling_test

// long is set by the build tag of the full matrices.
const long = true
