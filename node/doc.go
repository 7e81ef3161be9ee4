// Package node knows one QNet node: its numbers, its hashes and encodings, its
// HTTP and JSON-RPC surface, and the lines it logs.
//
// The rule of the package is that an answer which cannot be trusted is an
// error, never a zero value. A QNet node reports most of its errors, and its
// rate limit, as HTTP 200 with an error inside the body; some of its numbers
// fall back to harmless looking defaults when it knows nothing. Every such trap
// ends here in a typed error or in a nil pointer, so that the rooms above can
// treat "unknown" as what it is.
//
// Nothing here changes a node. The package imports the standard library and
// x/crypto/sha3 only.
package node
