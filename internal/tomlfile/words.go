package tomlfile

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Duration reads lengths of time such as "1s" or "1m30s".
type Duration time.Duration

// UnmarshalText refuses negative lengths: none of our settings can be one.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("is not a length of time such as \"1s\" or \"1m30s\"")
	}
	if v < 0 {
		return fmt.Errorf("is a negative length of time")
	}
	*d = Duration(v)
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// join appends a key to a path, quoted where TOML would need quotes.
func join(path, name string) string {
	bare := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
	if !bare {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func keyText(key []string) string {
	path := ""
	for _, k := range key {
		path = join(path, k)
	}
	return path
}

// tidy turns a library's message into one of ours: no prefix, one line.
func tidy(msg string) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(msg, "toml: ")), " ")
}

// suggest finds the key that was probably meant (best is empty where none comes near) and the hint to print.
func suggest(name string, known map[string]reflect.Type) (best, hint string) {
	names := make([]string, 0, len(known))
	for k := range known {
		names = append(names, k)
	}
	slices.Sort(names)
	distance := 3 // two slips of the finger, in a short word one; more is another word
	for _, k := range names {
		if d := slips(strings.ToLower(name), strings.ToLower(k)); d < distance && 2*d < len(k) {
			best, distance = k, d
		}
	}
	if best != "" {
		return best, "did you mean " + best + "?"
	}
	if len(names) == 0 {
		return "", ""
	}
	return "", "known here: " + strings.Join(names, ", ")
}

// slips counts the letters to insert, drop, replace or swap with a neighbour to turn a into b.
func slips(a, b string) int {
	x, y := []rune(a), []rune(b)
	d := make([][]int, len(x)+1)
	for i := range d {
		d[i] = make([]int, len(y)+1)
		d[i][0] = i
	}
	for j := range y {
		d[0][j+1] = j + 1
	}
	for i := range x {
		for j := range y {
			cost := 1
			if x[i] == y[j] {
				cost = 0
			}
			d[i+1][j+1] = min(d[i][j+1]+1, d[i+1][j]+1, d[i][j]+cost)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				d[i+1][j+1] = min(d[i+1][j+1], d[i-1][j-1]+1)
			}
		}
	}
	return d[len(x)][len(y)]
}
