// Package tomlfile reads a TOML file strictly and reports every fault in it at once, each with file, line, column and key.
//
// An operator who mends a file should do so once: unknown keys, wrong types, doubled keys and what the caller finds wrong
// with the values all arrive as one list. go-toml decides what is valid TOML and fills the value; this package walks the
// syntax tree beside it, because go-toml stops at the first wrong type and keeps no positions for later checks.
//
// A file that is read but faulty still gives its value as far as it goes, so that the caller's own checks can join the list:
//
//	v, pos, err := tomlfile.Decode[file](path)
//	if pos == nil {
//		return err // not readable at all
//	}
//	if v.Port > 65535 {
//		pos.Add("port", "65536 and more is no port", "use 1 to 65535")
//	}
//	return pos.Err()
//
// Keys are written as `hosts[3].port`: table names joined by dots, elements of arrays counted from 0.
package tomlfile
