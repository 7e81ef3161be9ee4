package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	dataPath  = "/srv/qnet"
	dataStamp = "20260301T180000Z"
)

// putData writes a small database, and what must never get lost beside it.
func putData(t testing.TB, root, dir string) {
	t.Helper()
	for name, text := range map[string]string{"CURRENT": "MANIFEST-000001\n", "MANIFEST-000001": "m", "000012.sst": strings.Repeat("x", smallFile+1),
		"archive/seg_1.qarc": "one", "archive/seg_1.json": "{}", "signed": "mark"} {
		p := filepath.Join(root, dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("seg_1.qarc", filepath.Join(root, dir, "archive/newest")); err != nil {
		t.Fatal(err)
	}
}

// stopped is a rig whose node is stopped for good, with data; the id is of its
// container.
func stopped(t *testing.T, fn func(r *rig, m DataMove)) {
	bubble(t, func(r *rig) {
		putData(t, r.dir, dataPath)
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		m := DataMove{Container: nodeName, ExpectID: r.e.find(nodeName).id, Path: dataPath, K: 40, Stamp: dataStamp}
		if _, err := r.w.State(r.ctx, StateRequest{Container: nodeName, ExpectID: m.ExpectID, Policy: &Policy{Name: "no"}, State: StateStopped}, nil); err != nil {
			t.Fatal(err)
		}
		fn(r, m)
	})
}

func (r *rig) data(aside string) DataInventory {
	r.t.Helper()
	inv, err := r.client.Data(r.ctx, DataRequest{Container: nodeName, Aside: aside})
	if err != nil {
		r.t.Fatal(err)
	}
	return inv
}

func TestDataInventory(t *testing.T) {
	stopped(t, func(r *rig, m DataMove) {
		inv := r.data("")
		if !inv.Exists || !inv.Database || inv.Files != 6 || inv.Bytes != uint64(smallFile+1+len("MANIFEST-000001\n")+1+3+2+4) || inv.Cut || inv.Disk.FreeBytes != 1<<40 {
			t.Errorf("%+v", inv)
		}
		var names []string
		for _, e := range inv.Entries {
			names = append(names, e.Name+" "+e.Kind)
			if (e.SHA256 == "") != (e.Kind == "dir" || e.Bytes > smallFile) {
				t.Errorf("hash of %+v", e)
			}
		}
		if want := "000012.sst file,CURRENT file,MANIFEST-000001 file,archive dir,archive/newest link,archive/seg_1.json file,archive/seg_1.qarc file,signed file"; strings.Join(names, ",") != want {
			t.Errorf("entries %q", names)
		}
		if again := r.data(""); again.Digest != inv.Digest {
			t.Error("two readings of one directory differ")
		}
		if err := os.WriteFile(filepath.Join(r.dir, dataPath, "signed"), []byte("Mark"), 0o640); err != nil {
			t.Fatal(err)
		}
		if again := r.data(""); again.Digest == inv.Digest {
			t.Error("a change of the content of a small file is not seen")
		}
		if _, err := r.client.Data(r.ctx, DataRequest{Container: nodeName, Aside: "/etc"}); !isCode(err, CodeBadRequest) {
			t.Errorf("another directory was read: %v", err)
		}
		if inv := r.data(m.Aside()); inv.Exists || inv.Digest != "" {
			t.Errorf("what is not there: %+v", inv)
		}
	})
}

func TestDataAsideAndBack(t *testing.T) {
	stopped(t, func(r *rig, m DataMove) {
		before := r.data("")
		for range 2 { // asked again it changes nothing
			got, err := r.w.DataAside(r.ctx, m, nil)
			if err != nil || !got.Finished || got.Other != "/srv/qnet-above-40-"+dataStamp {
				t.Fatalf("%+v %v", got, err)
			}
		}
		aside, now := r.data(m.Aside()), r.data("")
		if aside.Digest != before.Digest || !now.Exists || len(now.Entries) > 0 || !slices.Equal(now.Asides, []string{m.Aside()}) {
			t.Errorf("aside %+v, in its place %+v", aside, now)
		}
		was, err := os.Stat(filepath.Join(r.dir, m.Aside()))
		if err != nil {
			t.Fatal(err)
		}
		if is, err := os.Stat(filepath.Join(r.dir, dataPath)); err != nil || is.Mode() != was.Mode() {
			t.Errorf("mode %v, was %v, %v", is.Mode(), was.Mode(), err)
		}
		// A node has begun to join: nothing of that is deleted either.
		if err := os.WriteFile(filepath.Join(r.dir, dataPath, "joined"), []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		if again, err := r.w.DataAside(r.ctx, m, nil); err != nil || !again.Finished {
			t.Errorf("asked again while a node joins: %+v %v", again, err)
		}
		undone := "/srv/qnet-undone-40-" + dataStamp
		for range 2 {
			if back, err := r.w.DataBack(r.ctx, m, nil); err != nil || back.Other != undone {
				t.Fatalf("%+v %v", back, err)
			}
		}
		if now := r.data(""); now.Digest != before.Digest {
			t.Errorf("after the way back: %+v", now)
		}
		if u := r.data(undone); len(u.Entries) != 1 || u.Entries[0].Name != "joined" {
			t.Errorf("what was written meanwhile: %+v", u)
		}
	})
}

func TestDataMoveRefuses(t *testing.T) {
	in := func(r *rig, name string) string { return filepath.Join(r.dir, name) }
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, r *rig, m *DataMove)
		code   string
	}{
		"other container": {func(t *testing.T, r *rig, m *DataMove) { m.ExpectID = "x" }, CodeChanged},
		"other path":      {func(t *testing.T, r *rig, m *DataMove) { m.Path = "/srv" }, CodeDataDir},
		"unclean path":    {func(t *testing.T, r *rig, m *DataMove) { m.Path = "/srv/qnet/" }, CodeBadRequest},
		"stamp with path": {func(t *testing.T, r *rig, m *DataMove) { m.Stamp = "../../x" }, CodeBadRequest},
		"restart policy": {func(t *testing.T, r *rig, m *DataMove) {
			r.e.find(nodeName).host["RestartPolicy"] = object{"Name": "always"}
		}, CodeConflict},
		"it runs": {func(t *testing.T, r *rig, m *DataMove) { r.e.find(nodeName).status = "running" }, CodeConflict},
		"a reader runs": {func(t *testing.T, r *rig, m *DataMove) {
			o, msg := r.e.make("backup", mustObj(`{"Image":"`+imgOld+`","HostConfig":{"Binds":["/srv:/b:ro"]}}`))
			if msg != "" {
				t.Fatal(msg)
			}
			o.status = "running"
		}, CodeConflict},
		"volume": {func(t *testing.T, r *rig, m *DataMove) {
			c := r.e.find(nodeName)
			c.mounts = []any{object{"Type": "volume", "Name": "v", "Source": dataPath, "Destination": "/app/data", "RW": true}}
		}, CodeDataDir},
		"no database": {func(t *testing.T, r *rig, m *DataMove) { must(t, os.Remove(in(r, dataPath+"/CURRENT"))) }, CodeDataDir},
		"missing":     {func(t *testing.T, r *rig, m *DataMove) { must(t, os.Rename(in(r, dataPath), in(r, "/srv/other"))) }, CodeNotFound},
		"link": {func(t *testing.T, r *rig, m *DataMove) {
			must(t, os.Rename(in(r, dataPath), in(r, "/srv/other")))
			must(t, os.Symlink("other", in(r, dataPath)))
		}, CodeDataDir},
		"mount below": {func(t *testing.T, r *rig, m *DataMove) {
			must(t, os.MkdirAll(in(r, "/proc/self"), 0o755))
			must(t, os.WriteFile(in(r, "/proc/self/mountinfo"), []byte("22 1 8:1 / / rw - ext4 x rw\n31 22 8:2 / /srv/qnet/arch\\040ive rw - ext4 y rw\n"), 0o600))
		}, CodeDataDir},
		"name taken": {func(t *testing.T, r *rig, m *DataMove) { must(t, os.Mkdir(in(r, m.Aside()), 0o700)) }, CodeConflict},
	} {
		t.Run(name, func(t *testing.T) {
			stopped(t, func(r *rig, m DataMove) {
				r.e.mu.Lock()
				c.change(t, r, &m)
				r.e.mu.Unlock()
				before := tree(t, r.dir)
				if _, err := r.w.DataAside(r.ctx, m, nil); !isCode(err, c.code) {
					t.Errorf("aside: %v", err)
				}
				if name != "name taken" {
					if _, err := r.w.DataCopy(r.ctx, m, nil); !isCode(err, c.code) {
						t.Errorf("copy: %v", err)
					}
				}
				if now := tree(t, r.dir); name != "name taken" && now != before {
					t.Errorf("something was changed:\n%s\nwas\n%s", now, before)
				}
			})
		})
	}
}

// TestDataMoveIsFenced: a claim that was taken over moves nothing.
func TestDataMoveIsFenced(t *testing.T) {
	stopped(t, func(r *rig, m DataMove) {
		newer := claim1
		newer.Epoch++
		newer.Operation = "restart-2"
		if _, err := r.client.Writer(newer).TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		before := tree(t, r.dir)
		for name, do := range map[string]func() error{
			"aside": func() error { _, err := r.w.DataAside(r.ctx, m, nil); return err },
			"copy":  func() error { _, err := r.w.DataCopy(r.ctx, m, nil); return err },
			"back":  func() error { _, err := r.w.DataBack(r.ctx, m, nil); return err },
		} {
			if err := do(); !isFenced(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if tree(t, r.dir) != before {
			t.Error("something was changed")
		}
	})
}

func isFenced(err error) bool {
	_, ok := err.(*FencedError)
	return ok
}

// tree is all below a host's /srv but the folders of the tool, as text.
func tree(t testing.TB, root string) string {
	t.Helper()
	var inv DataInventory
	if err := readTree(context.Background(), filepath.Join(root, "srv"), &inv); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range inv.Entries {
		fmt.Fprintf(&b, "%s %s %d %s\n", e.Name, e.Kind, e.Bytes, e.SHA256)
	}
	return b.String()
}

// TestDataMoveCutAnywhere is invariants 4 and 11 for data moves: the agent dies
// before or after every act, with and without the outcome on the disk; whoever
// asks again reaches the same end, and at no moment is a file gone.
func TestDataMoveCutAnywhere(t *testing.T) {
	type move struct {
		name string
		tx   string
		do   func(h *hostOps) func(context.Context, DataMove, *txLog) (DataMoved, error)
		prep func(t *testing.T, h *hostOps, m DataMove)
	}
	aside := func(t *testing.T, h *hostOps, m DataMove) {
		if _, err := logged(h.cfg, claim1, m.Container, txDataAside, nil, func(l *txLog) (DataMoved, error) { return h.dataAside(context.Background(), m, l) }); err != nil {
			t.Fatal(err)
		}
	}
	moves := []move{
		{"aside", txDataAside, func(h *hostOps) func(context.Context, DataMove, *txLog) (DataMoved, error) { return h.dataAside }, nil},
		{"copy", txDataCopy, func(h *hostOps) func(context.Context, DataMove, *txLog) (DataMoved, error) { return h.dataCopy }, nil},
		{"back", txDataBack, func(h *hostOps) func(context.Context, DataMove, *txLog) (DataMoved, error) { return h.dataBack }, aside},
		{"back over a join", txDataBack, func(h *hostOps) func(context.Context, DataMove, *txLog) (DataMoved, error) { return h.dataBack },
			func(t *testing.T, h *hostOps, m DataMove) {
				aside(t, h, m)
				putData(t, h.cfg.Root, m.Path)
			}},
	}
	for _, mv := range moves {
		t.Run(mv.name, func(t *testing.T) {
			want := ""
			for n := 0; ; n++ { // 0: nothing is cut
				for _, lost := range []bool{false, true} {
					cut := false
					stopped(t, func(r *rig, m DataMove) {
						h := newOps(r.cfg)
						if mv.prep != nil {
							mv.prep(t, h, m)
						}
						files := contents(t, r.dir)
						ctx, die := context.WithCancel(r.ctx)
						defer die()
						events := 0
						watch := func(TxEvent) {
							if events++; events == n {
								cut = true
								die()
							}
						}
						_, err := logged(r.cfg, claim1, m.Container, mv.tx, watch, func(l *txLog) (DataMoved, error) { return mv.do(h)(ctx, m, l) })
						if n == 0 && err != nil {
							t.Fatal(err)
						}
						kept(t, r.dir, files)
						if lost && cut {
							chop(t, r.cfg.txPath(claim1.Operation, m.Container))
						}
						got, err := logged(r.cfg, claim1, m.Container, mv.tx, nil, func(l *txLog) (DataMoved, error) { return mv.do(h)(r.ctx, m, l) })
						if err != nil || !got.Finished {
							t.Fatalf("cut at event %d, outcome lost %v: %+v %v", n, lost, got, err)
						}
						kept(t, r.dir, files)
						if end := tree(t, r.dir); n == 0 {
							want = end
						} else if end != want {
							t.Errorf("cut at event %d, outcome lost %v:\n%s\nwant\n%s", n, lost, end, want)
						}
					})
					if t.Failed() {
						return
					}
					if n > 0 && !cut {
						if n < 4 {
							t.Errorf("only %d events", n-1)
						}
						return
					}
				}
			}
		})
	}
}

// contents are the sums of all files below /srv, which must be somewhere ever after.
func contents(t testing.TB, root string) map[string]int {
	out := map[string]int{}
	for _, line := range strings.Split(tree(t, root), "\n") {
		if f := strings.Fields(line); len(f) > 2 && f[1] == kindFile {
			out[strings.Join(f[2:], " ")]++
		}
	}
	return out
}

func kept(t testing.TB, root string, want map[string]int) {
	t.Helper()
	have := contents(t, root)
	for file, n := range want {
		if have[file] < n {
			t.Errorf("a file is gone: %s", file)
		}
	}
}

// chop takes the last line off a log, as a crash does before it is written. An
// intent stays: it is on the disk before anything is done.
func chop(t testing.TB, name string) {
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndexByte(bytes.TrimRight(raw, "\n"), '\n') + 1
	if bytes.Contains(raw[at:], []byte(`"state":"intent"`)) {
		return
	}
	if err := os.WriteFile(name, raw[:at], 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDataCopy(t *testing.T) {
	stopped(t, func(r *rig, m DataMove) {
		before := r.data("")
		// What a broken-off try has left is gone on with.
		part := filepath.Join(r.dir, m.Copy()+partSuffix)
		if err := os.MkdirAll(part, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(part, "000012.sst"), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := r.w.DataCopy(r.ctx, m, nil)
			if err != nil || !got.Finished || got.Bytes != before.Bytes || got.Total != before.Bytes || got.Other != m.Copy() {
				t.Fatalf("%+v %v", got, err)
			}
		}
		if inv := r.data(m.Copy()); inv.Digest != before.Digest {
			t.Errorf("copy %+v", inv)
		}
		if now := r.data(""); now.Digest != before.Digest || !slices.Equal(now.Asides, []string{m.Copy()}) {
			t.Errorf("original %+v", now)
		}
	})
}

func TestDataCopyEndsInItsTime(t *testing.T) {
	stopped(t, func(r *rig, m DataMove) {
		h := newOps(r.cfg)
		c := &copier{ctx: r.ctx, from: h.cfg.path(m.Path), to: h.cfg.path(m.Copy() + partSuffix), deadline: time.Now()}
		if err := c.run(); err != errCopyTime || c.bytes != 0 {
			t.Errorf("%v after %d bytes", err, c.bytes)
		}
		m.Seconds = 60
		if got, err := r.w.DataCopy(r.ctx, m, nil); err != nil || !got.Finished {
			t.Errorf("%+v %v", got, err)
		}
	})
}

func TestDataCopyNeedsRoom(t *testing.T) {
	for _, c := range []struct {
		free uint64
		ok   bool
	}{{copyReserve, false}, {copyReserve + smallFile + 100, true}} {
		stopped(t, func(r *rig, m DataMove) {
			cfg := r.cfg
			cfg.Facts = fixedDisk{c.free}
			h := newOps(cfg)
			_, err := logged(cfg, claim1, m.Container, txDataCopy, nil, func(l *txLog) (DataMoved, error) { return h.dataCopy(r.ctx, m, l) })
			if (err == nil) != c.ok || err != nil && !isCode(err, CodeNoSpace) {
				t.Errorf("%d bytes free: %v", c.free, err)
			}
		})
	}
}
