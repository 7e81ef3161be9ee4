package host

// allowance is what Compare may find different between an old container and its
// successor, by path.
type allowance struct {
	paths map[string]bool
}
