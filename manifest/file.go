package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/qnetops/qnetops/internal/rustlex"
	"github.com/qnetops/qnetops/internal/tomlfile"
)

// Source is where the five constants stand in the node's repository.
const Source = "development/qnet-integration/src/genesis_constants.rs"

// Position is a place in a file, both counted from 1.
type Position struct{ Line, Column int }

// Loaded is a manifest that was read, with the place of each field.
type Loaded struct {
	Manifest
	Name string
	at   map[string]Position
}

// At gives the place of a key, or of the nearest one above it (of the list for one of its elements); zero where there is none.
func (l Loaded) At(key string) Position {
	for key != "" {
		if p, ok := l.at[key]; ok {
			return p
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return Position{}
}

// FileError is a manifest file that cannot be read at all.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string {
	var pe *fs.PathError
	if errors.As(e.Err, &pe) {
		return "reading " + e.Path + ": " + pe.Err.Error()
	}
	return "reading " + e.Path + ": " + e.Err.Error()
}

func (e *FileError) Unwrap() error { return e.Err }

// Hint says what to give.
func (e *FileError) Hint() string {
	return "give a manifest as .toml or .json, or the node's " + Source
}

// Load reads a manifest in any of its forms, told apart by the ending of the name: .rs is the node's source, .json is JSON,
// anything else TOML. Content that is no manifest is tomlfile.Problems with every fault that was found.
func Load(path string) (Loaded, error) {
	data, err := ReadFile(path)
	if err != nil {
		return Loaded{}, err
	}
	return Read(path, data)
}

// Read is Load for content that is already in memory.
func Read(name string, data []byte) (Loaded, error) {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".rs":
		return Parse(name, data)
	case ".json":
		return readJSON(name, data)
	}
	return readTOML(name, data)
}

// ReadFile reads a regular file of a size that source has; the error is *FileError.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &FileError{path, err}
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, &FileError{path, errors.New("is no regular file")}
	}
	data, err := io.ReadAll(io.LimitReader(f, rustlex.MaxSize+1))
	switch {
	case err != nil:
		return nil, &FileError{path, err}
	case len(data) > rustlex.MaxSize:
		return nil, &FileError{path, fmt.Errorf("is larger than %d bytes", rustlex.MaxSize)}
	}
	return data, nil
}

func readTOML(name string, data []byte) (Loaded, error) {
	if len(data) > tomlfile.MaxSize {
		return Loaded{}, tomlfile.Problems{{File: name, What: fmt.Sprintf("is larger than %d bytes", tomlfile.MaxSize), Hint: "a manifest is a page of text"}}
	}
	if json := bytes.TrimLeft(data, " \t\r\n\xef\xbb\xbf"); bytes.HasPrefix(json, []byte("{")) {
		return Loaded{}, tomlfile.Problems{{File: name, Line: 1, Column: 1, What: "is JSON, not TOML", Hint: "name it .json"}}
	}
	m, pos, err := tomlfile.DecodeBytes[Manifest](name, data)
	if pos == nil {
		return Loaded{}, err
	}
	l := Loaded{Manifest: m, Name: name, at: map[string]Position{}}
	for _, key := range Keys() {
		line, column, ok := pos.Lookup(key)
		if !ok {
			pos.Add(key, "is missing", "every field is written out, a zero too")
		}
		l.at[key] = Position{line, column}
	}
	for i := range m.Restart.Excluded {
		key := fmt.Sprintf("%s[%d]", KeyExcluded, i)
		if line, column, ok := pos.Lookup(key); ok {
			l.at[key] = Position{line, column}
		}
	}
	if err := pos.Err(); err != nil {
		return Loaded{}, err
	}
	return l, nil
}
