package main

import (
	"context"
	"reflect"
	"strings"
	"testing"
)

// Bad input of rehearse and of the lab's commands is told what, why and what is known.
func TestRehearseUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		say  []string
	}{
		{"rehearse stop", []string{`no rehearsal of ["stop"]`, "roll, halt, rollback, restart, all"}},
		{"rehearse restart --nodes 4", []string{"--nodes 4", "5 to 100"}},
		{"rehearse all --block 10us", []string{"--block 10", "1ms"}},
		{"rehearse -o xml", []string{"table or json"}},
		{"lab image restart", []string{"TAG and MANIFEST", "--manifest"}},
		{"lab image restart nowhere.toml", []string{"nowhere.toml"}},
	} {
		s, out, errs := testStreams(t)
		code := Main(context.Background(), append([]string{"qnetops"}, strings.Fields(c.args)...), s)
		text := out.String() + errs.String()
		if code != exitUsage || !strings.Contains(text, "hint: ") {
			t.Errorf("%s: exit code %d, want %d and a hint\n%s", c.args, code, exitUsage, text)
		}
		for _, say := range c.say {
			if !strings.Contains(text, say) {
				t.Errorf("%s: does not say %q:\n%s", c.args, say, text)
			}
		}
	}
}

func TestRehearsalDocumentIsDescribed(t *testing.T) {
	describes(t, rehearsalSchema, reflect.TypeFor[rehearsalDocument](), 14)
	describes(t, "qnetops/lab-image/v1", reflect.TypeFor[labImage](), 4)
}
