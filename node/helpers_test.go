package node

import (
	"strconv"
	"strings"
	"testing"
)

func cutColon(s string) (string, string, bool) { return strings.Cut(s, ":") }

func mustUint(t testing.TB, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
