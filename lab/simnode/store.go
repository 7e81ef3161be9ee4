package simnode

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// Files of a data directory. Blocks and certificates are appended as JSON
// lines; a torn last line is cut off at the next start.
const (
	fileLock   = "LOCK"
	fileMeta   = "meta.json"
	fileBlocks = "blocks.jsonl"
	fileCerts  = "macroblocks.jsonl"
	fileMark   = "signed-mark.json"
	fileClean  = "CLEAN"      // present after a flush, removed by the next start
	fileTaint  = "CORRUPTION" // two nodes were on this directory
	fileOOM    = "oom-count"
	fileDecree = "decree-seq"
	fileVotes  = "abandoned-votes"
	fileFaults = "lab-faults"
	// The marks of a RocksDB directory. They hold nothing here, but the image
	// goes by them: see enterImage.
	fileCurrent  = "CURRENT"
	fileManifest = "MANIFEST-000001"
	fileOptions  = "OPTIONS-000005"
	fileIdentity = "IDENTITY"
)

// enterImage is what the image's entry point does to a data directory before the
// node runs: database files without MANIFEST and CURRENT are taken for a broken
// database and the whole directory is wiped (facts 5.1). It says whether it did.
func enterImage(dir string) (wiped bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return false, fmt.Errorf("entering data directory: %w", err)
	}
	var database, current, manifest bool
	for _, e := range entries {
		switch name := e.Name(); {
		case name == fileBlocks || name == fileCerts:
			database = true
		case name == fileCurrent:
			current = true
		case strings.HasPrefix(name, "MANIFEST-"):
			manifest = true
		}
	}
	if !database || (current && manifest) {
		return false, nil
	}
	for _, e := range entries {
		if e.Name() == fileFaults {
			continue // of the lab, not of the node
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return true, fmt.Errorf("wiping data directory: %w", err)
		}
	}
	return true, nil
}

// found writes the marks of a database that are not there yet.
func (st *store) found() error {
	for _, f := range [][2]string{{fileManifest, "qnetops lab database\n"}, {fileCurrent, fileManifest + "\n"},
		{fileOptions, "[Version]\n  options_file_version=1.1\n"}, {fileIdentity, "qnetops-lab\n"}} {
		path := filepath.Join(st.dir, f[0])
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := os.WriteFile(path, []byte(f[1]), 0o644); err != nil {
			return fmt.Errorf("founding the database: %w", err)
		}
	}
	return nil
}

// mark is the anti-double-sign mark: the newest slot this node signed a block
// for. It only goes down by a boot rollback.
type mark struct {
	Height uint64 `json:"h"`
	Round  uint64 `json:"r"`
	Window uint64 `json:"w"`
}

// meta pins what the directory's chain was started with, so that another image
// with other lab variables continues the same chain.
type meta struct {
	Genesis      int64    `json:"genesis"`
	History      uint64   `json:"history"`
	GenesisCount int      `json:"genesis_count"`
	Supers       []string `json:"supers"`
	// Premade is how much of the history this directory has; 0 is all of it. Only
	// a node that joined a restarted chain has less.
	Premade uint64 `json:"premade,omitempty"`
	// Era is the macroblock of the restart that this directory's data follows; 0
	// is the chain from genesis on. What lies above that macroblock in data of
	// another era was abandoned.
	Era uint64 `json:"era,omitempty"`
}

// store is an open data directory; the zero value stores nothing.
type store struct {
	dir     string
	lock    *os.File
	blocks  *os.File
	certs   *os.File
	mark    *os.File
	offsets []int64 // end of each stored block's line
	ends    []int64 // the same for certificates
	first   uint64  // blocks up to here are pre-made and not stored
}

// errInUse: another node holds the data directory.
var errInUse = errors.New("data directory in use")

// openStore locks a directory. With errInUse the directory is tainted.
func openStore(dir string) (*store, error) {
	if dir == "" {
		return &store{}, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("opening data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, fileLock), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening data directory: %w", err)
	}
	if !tryLock(lock) {
		_ = lock.Close()
		_ = os.WriteFile(filepath.Join(dir, fileTaint), []byte("two nodes on one data directory\n"), 0o644)
		return nil, errInUse
	}
	_ = os.Remove(filepath.Join(dir, fileClean))
	st := &store{dir: dir, lock: lock}
	if err := st.found(); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// wipe deletes everything but the lock and the lab's own files.
func (st *store) wipe() error {
	return st.remove(fileMeta, fileBlocks, fileCerts, fileMark, fileVotes)
}

// remove deletes files that may be absent.
func (st *store) remove(names ...string) error {
	if st.dir == "" {
		return nil
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(st.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cleaning data directory: %w", err)
		}
	}
	return nil
}

// pin returns the stored meta, or stores the given one in a new directory.
func (st *store) pin(m meta) (meta, error) {
	if st.dir == "" {
		return m, nil
	}
	var old meta
	switch ok, err := st.readJSON(fileMeta, &old); {
	case err != nil:
		return m, err
	case ok:
		return old, nil
	}
	return m, st.writeJSON(fileMeta, m)
}

// empty says whether a node has never begun a chain here.
func (st *store) empty() bool {
	if st.dir == "" {
		return true
	}
	for _, name := range []string{fileMeta, fileBlocks} {
		if _, err := os.Stat(filepath.Join(st.dir, name)); err == nil {
			return false
		}
	}
	return true
}

// notes reads what the stored certificates say of who is left out: the blocks
// cannot be checked without.
func (st *store) notes(c *chain) error {
	raw, err := os.ReadFile(filepath.Join(st.dir, fileCerts))
	if errors.Is(err, os.ErrNotExist) || (err == nil && !bytes.Contains(raw, []byte(`"b":[`))) {
		return nil
	}
	for line := range bytes.Lines(raw) {
		var ct struct {
			Index uint64   `json:"i"`
			Bars  []string `json:"b"`
		}
		if json.Unmarshal(line, &ct) == nil && len(ct.Bars) > 0 {
			c.note(ct.Index, ct.Bars)
		}
	}
	return err
}

// load replays the stored blocks and certificates into c.
func (st *store) load(c *chain) error {
	st.first = c.tip()
	if st.dir == "" {
		return nil
	}
	err := st.notes(c)
	if err != nil {
		return err
	}
	if st.blocks, st.offsets, err = openLines(filepath.Join(st.dir, fileBlocks), func(line []byte) bool {
		var b block
		if json.Unmarshal(line, &b) != nil || c.check(&b) != nil {
			return false
		}
		c.push(b)
		return true
	}); err != nil {
		return err
	}
	first := uint64(len(c.certs))
	st.certs, st.ends, err = openLines(filepath.Join(st.dir, fileCerts), func(line []byte) bool {
		var ct cert
		if json.Unmarshal(line, &ct) != nil || ct.Index != uint64(len(c.certs))+1 ||
			ct.Index*node.CheckpointBlocks > c.tip() || c.checkpoint(ct.Index).Hash() != ct.Hash {
			return false
		}
		c.pushCert(ct)
		return true
	})
	st.ends = append(make([]int64, first), st.ends...)
	return err
}

// openLines reads a file line by line, cuts it after the last line that take
// accepts and leaves it open for appending.
func openLines(path string, take func([]byte) bool) (*os.File, []int64, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("opening data directory: %w", err)
	}
	var ends []int64
	var end int64
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil || !take(line) {
			break
		}
		end += int64(len(line))
		ends = append(ends, end)
	}
	if err := f.Truncate(end); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cutting torn line: %w", err), f.Close())
	}
	_, err = f.Seek(end, io.SeekStart)
	return f, ends, err
}

func (st *store) addBlock(b *block) error {
	if st.blocks == nil {
		return nil
	}
	return appendLine(st.blocks, &st.offsets, b)
}

func (st *store) addCert(ct *cert) error {
	if st.certs == nil {
		return nil
	}
	return appendLine(st.certs, &st.ends, ct)
}

func appendLine(f *os.File, ends *[]int64, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	n, err := f.Write(append(line, '\n'))
	var last int64
	if k := len(*ends); k > 0 {
		last = (*ends)[k-1]
	}
	*ends = append(*ends, last+int64(n))
	return err
}

// cut keeps the blocks up to height h and the first certs certificates.
func (st *store) cut(h uint64, certs int) error {
	if st.blocks == nil {
		return nil
	}
	return errors.Join(cutLines(st.blocks, &st.offsets, int(h)-int(st.first)), cutLines(st.certs, &st.ends, certs))
}

func cutLines(f *os.File, ends *[]int64, keep int) error {
	keep = max(keep, 0)
	if keep >= len(*ends) {
		return nil
	}
	var end int64
	if keep > 0 {
		end = (*ends)[keep-1]
	}
	*ends = (*ends)[:keep]
	if err := f.Truncate(end); err != nil {
		return err
	}
	_, err := f.Seek(end, io.SeekStart)
	return err
}

func (st *store) readJSON(name string, v any) (bool, error) {
	if st.dir == "" {
		return false, nil
	}
	raw, err := os.ReadFile(filepath.Join(st.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("reading %s: %w", name, err)
	}
	return true, nil
}

// writeJSON replaces a small file at once.
func (st *store) writeJSON(name string, v any) error {
	if st.dir == "" {
		return nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := filepath.Join(st.dir, name)
	if err := os.WriteFile(path+".tmp", raw, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// writeMark overwrites the signing mark in place: it changes with every block,
// and its padded form always has the same length.
func (st *store) writeMark(v mark) error {
	if st.dir == "" {
		return nil
	}
	if st.mark == nil {
		f, err := os.OpenFile(filepath.Join(st.dir, fileMark), os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("writing signing mark: %w", err)
		}
		st.mark = f
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = st.mark.WriteAt(fmt.Appendf(nil, "%-96s\n", raw), 0)
	return err
}

func (st *store) faults() string {
	if st.dir == "" {
		return ""
	}
	raw, _ := os.ReadFile(filepath.Join(st.dir, fileFaults))
	return strings.TrimPrefix(string(raw), "\ufeff")
}

// flush marks the directory as cleanly left.
func (st *store) flush() error {
	if st.dir == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(st.dir, fileClean), nil, 0o644)
}

func (st *store) close() {
	for _, f := range []*os.File{st.blocks, st.certs, st.mark, st.lock} {
		if f != nil {
			_ = f.Close()
		}
	}
}
