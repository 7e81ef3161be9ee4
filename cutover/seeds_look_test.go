package cutover_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/node"
)

// file is one file of an inventory.
type file struct {
	path, base string // path from beside the data directory
	size       int64
	sum        string
	// firm is how many bytes of it no node may drop: those up to the last line that
	// its certificates cover, or all.
	firm    int64
	firmSum string
	root    string
}

// rewritten are files that a node replaces or removes as it runs.
var rewritten = []string{"LOCK", "CLEAN", "CORRUPTION", "signed-mark.json", "signed-mark.json.tmp", "meta.json.tmp",
	"lab-faults", "oom-count", "abandoned-votes", "decree-seq"}

// appended are files that a node appends lines to.
var appended = []string{"blocks.jsonl", "macroblocks.jsonl"}

// dataDirs are the data directory of a host and what lies beside it under its name.
func dataDirs(h *lab.Host) []string {
	found, err := filepath.Glob(h.DataDir() + "*")
	if err != nil {
		return nil // cannot be: the pattern is ours
	}
	return found
}

// inventory lists every file of a host's data, in use and set aside, by its content.
func inventory(h *lab.Host) (out []file) {
	parent := filepath.Dir(h.DataDir())
	for _, top := range dataDirs(h) {
		_ = filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil // it was renamed in this moment; what is lost by that will be missed
			}
			if f, err := read(path); err == nil {
				f.root = parent
				f.path, _ = filepath.Rel(parent, path)
				out = append(out, f)
			}
			return nil
		})
	}
	return out
}

func read(path string) (file, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return file{}, err
	}
	f := file{base: filepath.Base(path), size: int64(len(body)), sum: sum(body)}
	f.firm = f.size
	if f.base == "blocks.jsonl" {
		covered := uint64(0)
		for index := range certs(filepath.Dir(path)) {
			covered = max(covered, index*node.CheckpointBlocks)
		}
		f.firm = 0
		for line := range bytes.Lines(body) {
			var b struct {
				H uint64 `json:"h"`
			}
			if json.Unmarshal(line, &b) != nil || b.H > covered {
				break
			}
			f.firm += int64(len(line))
		}
	}
	if f.base == "macroblocks.jsonl" {
		f.firm = int64(bytes.LastIndexByte(body, '\n') + 1) // a torn last line is none
	}
	f.firmSum = sum(body[:f.firm])
	return f, nil
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// certs are the checkpoints that a data directory has certificates of, with their
// hashes: every thirtieth block, and every third of them is a macroblock.
func certs(dir string) map[uint64]string {
	out := map[uint64]string{}
	body, err := os.ReadFile(filepath.Join(dir, "macroblocks.jsonl"))
	if err != nil {
		return out
	}
	for line := range bytes.Lines(body) {
		var c struct {
			I uint64 `json:"i"`
			X string `json:"x"`
		}
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &c) == nil {
			out[c.I] = c.X
		}
	}
	return out
}

// era is the macroblock of the restart that a data directory follows; 0: of none.
func era(dir string) uint64 {
	var m struct {
		Era uint64 `json:"era"`
	}
	if body, err := os.ReadFile(filepath.Join(dir, "meta.json")); err != nil || json.Unmarshal(body, &m) != nil {
		return 0
	}
	return m.Era
}

// lost names what was there and is nowhere now: neither the same content in any
// file, nor a file that goes on from it. running says that nodes ran when it was
// listed, so that only what is certified had to stay.
func lost(was, now []file, running bool) (out []string) {
	have := map[string]bool{}
	for _, f := range now {
		have[f.sum] = true
	}
	for _, f := range was {
		switch {
		case have[f.sum]:
		case slices.Contains(rewritten, f.base) && (running || slices.ContainsFunc(now,
			func(n file) bool { return n.base == f.base || f.base == "CLEAN" })):
		case slices.Contains(appended, f.base) && continued(f, now, running):
		default:
			out = append(out, fmt.Sprintf("%s, %d bytes, is nowhere any more", f.path, f.size))
		}
	}
	return out
}

// continued says whether some file begins with all that had to stay.
func continued(f file, now []file, running bool) bool {
	size, want := f.size, f.sum
	if running {
		size, want = f.firm, f.firmSum
	}
	return slices.ContainsFunc(now, func(n file) bool {
		if n.base != f.base || n.size < size {
			return false
		}
		in, err := os.Open(filepath.Join(n.root, n.path))
		if err != nil {
			return false
		}
		defer in.Close()
		hash := sha256.New()
		_, err = io.CopyN(hash, in, size)
		return err == nil && hex.EncodeToString(hash.Sum(nil)) == want
	})
}

// images tells what a container has from its image: an engine of its own creates one
// container of it that says nothing else.
type images struct {
	w      *world
	engine *engine.Engine
	known  map[string]map[string]any
}

func newImages(w *world) *images {
	i := &images{w: w, known: map[string]map[string]any{}, engine: engine.New(engine.Config{Host: "oracle",
		Root: w.TempDir(), Registry: w.lab.Registry(), Seed: 1})}
	w.Cleanup(i.engine.Close)
	return i
}

func (i *images) config(ref string) map[string]any {
	if c := i.known[ref]; c != nil {
		return c
	}
	body, err := json.Marshal(map[string]any{"Image": ref})
	if err == nil {
		err = i.engine.Load(ref)
	}
	id := ""
	if err == nil {
		id, err = i.engine.CreateContainer("of-"+sum([]byte(ref))[:12], body)
	}
	var raw json.RawMessage
	if err == nil {
		raw, err = i.engine.Inspect(id)
	}
	var c inspected
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		i.w.Errorf("image %s: %v", ref, err)
	}
	i.known[ref] = c.Config
	return c.Config
}

// build is what an image calls itself.
func (i *images) build(ref string) string {
	for _, kv := range list(i.config(ref)["Env"]) {
		if v, ok := strings.CutPrefix(kv, "QNET_BUILD_ID="); ok {
			return v
		}
	}
	return ref
}

// settings are what a person set on a container: all of inspect that is neither from
// its image nor one of what is left out on purpose (the image itself, the restart
// policy, one-shot variables), as JSON.
func (i *images) settings(c inspected) string {
	ref, _ := c.Config["Image"].(string)
	of := i.config(ref)
	own := map[string]any{}
	for key, v := range c.Config {
		switch key {
		case "Image":
		case "Hostname":
			if s, _ := v.(string); s != c.ID[:min(12, len(c.ID))] {
				own[key] = v
			}
		case "Env":
			own[key] = slices.Sorted(slices.Values(slices.DeleteFunc(list(v), func(kv string) bool {
				name, _, _ := strings.Cut(kv, "=")
				return oneShot(name) || slices.Contains(list(of[key]), kv)
			})))
		case "Labels":
			labels := maps.Clone(asMap(v))
			maps.DeleteFunc(labels, func(k string, v any) bool { return asMap(of[key])[k] == v })
			own[key] = labels
		default:
			if !reflect.DeepEqual(v, of[key]) {
				own[key] = v
			}
		}
	}
	host := maps.Clone(c.HostConfig)
	delete(host, "RestartPolicy")
	binds := map[string]string{}
	for _, m := range c.Mounts {
		binds[m.Destination] = m.Source
	}
	text, err := json.Marshal(map[string]any{"Config": own, "HostConfig": host, "Mounts": binds,
		"Networks": slices.Sorted(maps.Keys(c.NetworkSettings.Networks))})
	if err != nil {
		i.w.Error(err)
	}
	return string(text)
}

func asMap(v any) map[string]any { m, _ := v.(map[string]any); return m }
