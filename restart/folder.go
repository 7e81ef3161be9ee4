package restart

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
)

const (
	// maxFolder bounds all files of a record together, in bytes: hundreds of operators with some megabytes each.
	maxFolder = 4 << 30
	// maxFolderFiles bounds how many there are.
	maxFolderFiles = 10_000
)

// Folder is the content of a record's folder by slash-separated name.
type Folder map[string][]byte

// FolderError is a folder that cannot be read or written.
type FolderError struct {
	Path string
	Err  error
	hint string
}

func (e *FolderError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *FolderError) Unwrap() error { return e.Err }

// Hint says what to do.
func (e *FolderError) Hint() string { return e.hint }

// RecordFile names a file of a record by its content.
type RecordFile struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  uint64 `json:"bytes"`
}

// list names every file of a folder, by name.
func (f Folder) list() []RecordFile {
	out := []RecordFile{}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		out = append(out, RecordFile{Name: name, SHA256: FileHash(f[name]), Bytes: uint64(len(f[name]))})
	}
	return out
}

// FileHash is the SHA-256 of a file in hex, as sha256sum prints it.
func FileHash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Write makes the folder dir with these files: all of it or nothing. They are written to a folder beside it, made durable, and
// that is renamed; a path that is taken is left as it is. The error is *FolderError.
func (f Folder) Write(dir string) error {
	fail := func(err error) error {
		return &FolderError{dir, err, "name a folder that is not there yet, in one that is and has space"}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = errors.New("is there already, and a record is never written over")
		}
		return fail(err)
	}
	parent := filepath.Dir(filepath.Clean(dir))
	temp, err := os.MkdirTemp(parent, ".restart-record-")
	if err != nil {
		return fail(cause(err))
	}
	defer os.RemoveAll(temp)
	if err := f.fill(temp); err != nil {
		return fail(err)
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return fail(cause(err))
	}
	if err := os.Rename(temp, dir); err != nil {
		return fail(err)
	}
	return syncPath(parent)
}

func (f Folder) fill(dir string) error {
	folders := map[string]bool{dir: true}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		folders[filepath.Dir(file)] = true
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := writeDurable(file, f[name]); err != nil {
			return err
		}
	}
	for folder := range folders {
		if err := syncPath(folder); err != nil {
			return err
		}
	}
	return nil
}

func writeDurable(file string, data []byte) error {
	w, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return errors.Join(err, w.Sync(), w.Close())
}

// syncPath makes the entries of a folder durable.
func syncPath(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadFolder reads a record's folder whole. Anything in it that is no regular file or folder is an error: a link could show
// other content to whoever reads it next. The error is *FolderError.
func ReadFolder(dir string) (Folder, error) {
	fail := func(name string, err error) (Folder, error) {
		return nil, &FolderError{filepath.Join(dir, filepath.FromSlash(name)), cause(err), "give the folder of a record as it was published: record.json and all beside it"}
	}
	out := Folder{}
	left := int64(maxFolder)
	at := "."
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		at = name
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return emptyFolder(dir, name)
		case !d.Type().IsRegular():
			return errors.New("is no regular file")
		case len(out) == maxFolderFiles:
			return fmt.Errorf("there are more than %d files", maxFolderFiles)
		}
		data, err := readAtMost(filepath.Join(dir, filepath.FromSlash(name)), left)
		out[name], left = data, left-int64(len(data))
		return err
	})
	if err != nil {
		return fail(at, err)
	}
	if _, ok := out[RecordName]; !ok {
		return fail(RecordName, errors.New("is not there, so this is no record"))
	}
	return out, nil
}

// emptyFolder refuses folders with nothing in them: no list of files would name them.
func emptyFolder(dir, name string) error {
	entries, err := os.ReadDir(filepath.Join(dir, filepath.FromSlash(name)))
	if err == nil && len(entries) == 0 && name != "." {
		err = errors.New("is an empty folder, which belongs to no record")
	}
	return err
}

func readAtMost(file string, limit int64) ([]byte, error) {
	r, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("the files are more than %d bytes together", int64(maxFolder))
	}
	return data, err
}

// compareFiles finds what differs between a record's list of files and the folder. The record itself and its signature are in no
// list: the one cannot hold its own hash, and the other is made of it.
func (f Folder) compareFiles(listed []RecordFile) []Difference {
	var out []Difference
	seen := map[string]bool{RecordName: true, RecordName + SigSuffix: true}
	for i, want := range listed {
		where := fmt.Sprintf("%s: files[%d]", RecordName, i)
		switch data, ok := f[want.Name]; {
		case seen[want.Name]:
			out = append(out, Difference{where, "listed_twice", fmt.Sprintf("%q is listed twice, or must not be listed", want.Name)})
		case path.Clean(want.Name) != want.Name || !fs.ValidPath(want.Name):
			out = append(out, Difference{where, "bad_name", fmt.Sprintf("%q is no name of a file in the folder", want.Name)})
		case !ok:
			out = append(out, Difference{want.Name, "missing", "is listed and not there"})
		case uint64(len(data)) != want.Bytes || FileHash(data) != want.SHA256:
			out = append(out, Difference{want.Name, "changed", fmt.Sprintf("is %d bytes with SHA-256 %s, listed are %d bytes with %s", len(data), FileHash(data), want.Bytes, want.SHA256)})
		}
		seen[want.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if !seen[name] {
			out = append(out, Difference{name, "extra", "is there and not listed"})
		}
	}
	return out
}

// firstDifference is the line and the column, from 1, at which two texts part.
func firstDifference(a, b []byte) (line, column int) {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return 1 + bytes.Count(a[:n], []byte("\n")), n - bytes.LastIndexByte(a[:n], '\n')
}
