package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Bounds of an inventory.
const (
	smallFile   = 64 << 10 // bytes: a file up to this size is hashed
	mostEntries = 20_000   // listed; the digest is over all there are
)

// DataRequest asks what is in the data directory of a container.
type DataRequest struct {
	Container string `json:"container"`
	// Aside is the path of a directory that was moved or copied aside from it; "" is
	// the data directory itself.
	Aside string `json:"aside,omitempty"`
}

// DataEntry is one file of a directory: its path below it with slashes, its size in
// bytes, and the SHA-256 of a small one in hex.
type DataEntry struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"` // file, dir, link, other
	Bytes  uint64 `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"`
}

// DataInventory is what is in a data directory. Two with the same digest hold the
// same names, sizes and small files.
type DataInventory struct {
	DataDir DataDir `json:"data_dir"` // of the container, in effect
	Path    string  `json:"path"`     // the directory that was read
	Exists  bool    `json:"exists"`
	// Database says that it has the CURRENT file without which no node opens it.
	Database bool        `json:"database"`
	Files    uint64      `json:"files"`
	Bytes    uint64      `json:"bytes"`
	Digest   string      `json:"digest"` // SHA-256 in hex over every entry; "" where there is no directory
	Entries  []DataEntry `json:"entries"`
	Cut      bool        `json:"cut"` // there are more entries than are listed
	// Asides are the directories beside it that were moved or copied aside, by name.
	Asides []string  `json:"asides"`
	Disk   DiskFacts `json:"disk"`
}

// asideName is the last part of the path of what was set aside from base.
var asideName = regexp.MustCompile(`^-(above|copy|undone)-[0-9]{1,20}-[0-9]{8}T[0-9]{6}Z(\.part)?$`)

// isAside says whether p lies beside dir under a name that a data move gives.
func isAside(dir, p string) bool {
	rest, ok := strings.CutPrefix(p, dir)
	return ok && asideName.MatchString(rest)
}

// dataInventory reads the data directory of a container, or one set aside from it.
func (h *hostOps) dataInventory(ctx context.Context, req DataRequest) (DataInventory, error) {
	_, o, err := h.eng.inspect(ctx, req.Container)
	if err != nil {
		return DataInventory{}, err
	}
	inv := DataInventory{DataDir: dataDirOf(o), Entries: []DataEntry{}, Asides: []string{}}
	if inv.DataDir.HostPath == "" || !filepath.IsAbs(inv.DataDir.HostPath) {
		return inv, errorf(CodeDataDir, "", "the data directory of %s is not on the host", req.Container)
	}
	inv.Path = cmp.Or(req.Aside, inv.DataDir.HostPath)
	if req.Aside != "" && !isAside(inv.DataDir.HostPath, req.Aside) {
		return inv, errorf(CodeBadRequest, "", "%s was not set aside from the data directory %s", req.Aside, inv.DataDir.HostPath)
	}
	inv.Disk = h.disk(filepath.Dir(inv.Path))
	if inv.Asides, err = asidesOf(h.cfg, inv.DataDir.HostPath); err != nil {
		return inv, err
	}
	return inv, readTree(ctx, h.cfg.path(inv.Path), &inv)
}

func asidesOf(cfg Config, dir string) ([]string, error) {
	entries, err := os.ReadDir(cfg.path(filepath.Dir(dir)))
	if errors.Is(err, fs.ErrNotExist) {
		return []string{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking beside the data directory: %w", err)
	}
	out := []string{}
	for _, e := range entries {
		if p := filepath.Join(filepath.Dir(dir), e.Name()); isAside(dir, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out, nil
}

// readTree walks a directory in the order of names. A file that goes away while a
// node runs on it is left out: the digest says that something changed.
func readTree(ctx context.Context, root string, inv *DataInventory) error {
	if _, err := os.Lstat(root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	sum := sha256.New()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if errors.Is(err, fs.ErrNotExist) || p == root && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
		e, err := readEntry(root, p, d)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		inv.count(e)
		fmt.Fprintf(sum, "%s %d %s %q\n", e.Kind, e.Bytes, e.SHA256, e.Name)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading a data directory: %w", err)
	}
	inv.Exists, inv.Digest = true, hex.EncodeToString(sum.Sum(nil))
	return nil
}

func (inv *DataInventory) count(e DataEntry) {
	if e.Kind == kindFile {
		inv.Files++
		inv.Bytes += e.Bytes
		inv.Database = inv.Database || e.Name == databaseMark
	}
	if len(inv.Entries) == mostEntries {
		inv.Cut = true
		return
	}
	inv.Entries = append(inv.Entries, e)
}

// databaseMark is the file by which RocksDB, and the node's image, know a database
// (facts 5.1); kindFile is the kind of a regular file.
const (
	databaseMark = "CURRENT"
	kindFile     = "file"
)

func readEntry(root, p string, d fs.DirEntry) (DataEntry, error) {
	info, err := d.Info()
	if err != nil {
		return DataEntry{}, err
	}
	name, err := filepath.Rel(root, p)
	if err != nil {
		return DataEntry{}, err
	}
	e := DataEntry{Name: filepath.ToSlash(name), Kind: "other"}
	switch {
	case d.IsDir():
		e.Kind = "dir"
	case d.Type()&fs.ModeSymlink != 0:
		e.Kind = "link"
		target, err := os.Readlink(p)
		if err != nil {
			return e, err
		}
		e.SHA256 = hashOf([]byte(target))
	case d.Type().IsRegular():
		e.Kind, e.Bytes = kindFile, uint64(max(info.Size(), 0))
		if info.Size() <= smallFile {
			e.SHA256, err = hashFile(p)
		}
	}
	return e, err
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func hashFile(p string) (string, error) {
	f, err := os.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(f, smallFile)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
