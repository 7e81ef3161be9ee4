package cutover

import "strings"

// splitStep takes a step's id apart: the host, and the name without the number of
// its repetition.
func splitStep(id string) (hostID, name string) {
	hostID, name, _ = strings.Cut(id, "/")
	name, _, _ = strings.Cut(name, "#")
	return hostID, name
}
