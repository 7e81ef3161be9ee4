package host

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Transactions and steps of data moves, as they stand in the log.
const (
	txDataAside = "data_aside"
	txDataCopy  = "data_copy"
	txDataBack  = "data_back"

	stepRenameAside = "rename_data_aside"
	stepMakeDir     = "make_data_dir"
	stepClearDir    = "clear_data_dir" // what stands in the place of the data goes out of the way
	stepRenameBack  = "rename_data_back"
	stepCopyData    = "copy_data"
	stepNameCopy    = "name_copy"
)

// DataMove says which data directory is meant and how what is set aside is called.
// Nothing is ever deleted by it: a directory is renamed or copied, and an empty one
// that stands in the way is taken away.
type DataMove struct {
	Container string `json:"container"`
	ExpectID  string `json:"expect_id"` // of the stopped container; another one is refused with ErrChanged
	Path      string `json:"path"`      // the data directory on the host, as the plan has it
	K         uint64 `json:"k"`         // the macroblock the chain resumes from
	Stamp     string `json:"stamp"`     // a time, 20260301T180000Z: the same for each repeat of one move
	// Seconds bounds how long one request copies; what is missing is left for the
	// next one. 0: as long as it takes.
	Seconds int `json:"seconds,omitempty"`
}

// Aside is where the directory is renamed to.
func (m DataMove) Aside() string { return m.beside("above") }

// Copy is where it is copied to.
func (m DataMove) Copy() string { return m.beside("copy") }

func (m DataMove) beside(word string) string {
	return fmt.Sprintf("%s-%s-%d-%s", m.Path, word, m.K, m.Stamp)
}

// DataMoved tells how a move ended.
type DataMoved struct {
	Path string `json:"path"`
	// Other is the directory set aside, the copy, or, after a way back, the one
	// whose content stood in the place of the data; "" where there was none.
	Other string `json:"other"`
	// Finished is false where a copy ran out of its time: asked again, it goes on.
	Finished bool   `json:"finished"`
	Bytes    uint64 `json:"bytes"` // of a copy so far
	Total    uint64 `json:"total"` // of a copy
}

// DataMark is what a log remembers of a directory: the name of the one that is
// renamed can be lost by a crash, its inode cannot.
type DataMark struct {
	Path   string `json:"path"`
	Aside  string `json:"aside"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

var stampForm = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z$`)

// mayMove refuses every path but that of the data directory in effect of a node
// that is stopped for good, on a plain directory of its own.
func (h *hostOps) mayMove(ctx context.Context, m DataMove) error {
	if !ValidContainerName(m.Container) || !stampForm.MatchString(m.Stamp) || !filepath.IsAbs(m.Path) || filepath.Clean(m.Path) != m.Path {
		return errorf(CodeBadRequest, "", "a data move needs a container, a clean absolute path and a time stamp")
	}
	_, o, err := h.eng.inspect(ctx, m.Container)
	if err != nil {
		return err
	}
	if str(o, "Id") != m.ExpectID {
		return errorf(CodeChanged, "look again and plan anew", "the container %s on this host is not the one that was meant", m.Container)
	}
	d := dataDirOf(o)
	switch {
	case d.HostPath != m.Path:
		return errorf(CodeDataDir, "look again and plan anew", "the data directory in effect is %s, not %s", d.HostPath, m.Path)
	case d.Ambiguous != "":
		return errorf(CodeDataDir, "set QNET_DATA_DIR on the node and plan anew", "the data directory is not certain: %s", d.Ambiguous)
	case d.Kind != DataBind:
		return errorf(CodeDataDir, "a volume lies in the engine's own folders; move its data by hand",
			"the data directory is a %s, and only a directory of the host is moved", d.Kind)
	case policyFrom(o).Name != "no":
		return errorf(CodeConflict, "", "the node's restart policy is %s: an engine that restarts could start it in the middle", policyFrom(o).Name)
	}
	return errors.Join(h.nobodyOn(ctx, m.Path), h.cfg.plainDir(m.Path))
}

// nobodyOn refuses while any container runs that has the directory mounted, also
// to read only: under it the files would change their place.
func (h *hostOps) nobodyOn(ctx context.Context, path string) error {
	users, err := h.sharers(ctx, path)
	if err != nil {
		return err
	}
	for _, u := range users {
		if stateRuns(u.State) {
			return errorf(CodeConflict, "stop it first", "container %s runs on the data directory %s", u.Name, path)
		}
	}
	return nil
}

// plainDir refuses what cannot be the place of one node's data: a path near the
// root, a link, a mount point or a directory with mounts below it, and the
// folders of this tool. That the directory is missing is settled by the caller.
func (c Config) plainDir(path string) error {
	if strings.Count(path, "/") < 2 || under(DefaultStateDir, path) || under(path, DefaultStateDir) || under(c.StateDir, path) || under(path, c.StateDir) {
		return errorf(CodeDataDir, "", "%s is not a directory that is moved", path)
	}
	info, err := os.Lstat(c.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at the data directory: %w", err)
	}
	if !info.IsDir() {
		return errorf(CodeDataDir, "name the directory itself in the node's mount", "%s is a link or a file, not a directory", path)
	}
	parent, err := os.Stat(c.path(filepath.Dir(path)))
	if err != nil {
		return fmt.Errorf("looking at the data directory: %w", err)
	}
	own, _ := markOf(info)
	above, _ := markOf(parent)
	mounted, err := c.mountsIn(path)
	if err != nil {
		return err
	}
	if own.Device != above.Device || mounted != "" {
		return errorf(CodeDataDir, "its data cannot be set aside by a rename; mount the disk one level higher",
			"%s is a mount point or has one below it (%s)", path, firstOf(mounted, path))
	}
	return nil
}

// mountsIn names a mount point at or below path, "" where there is none. A system
// without the kernel's list refuses to rename a mount point by itself.
func (c Config) mountsIn(path string) (string, error) {
	raw, err := os.ReadFile(c.path("/proc/self/mountinfo"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the mounts of the host: %w", err)
	}
	s := bufio.NewScanner(bytes.NewReader(raw))
	s.Buffer(nil, maxLine)
	for s.Scan() {
		if f := strings.Fields(s.Text()); len(f) > 4 && under(unescapeMount(f[4]), path) {
			return unescapeMount(f[4]), nil
		}
	}
	return "", s.Err()
}

// unescapeMount undoes the octal escapes of the kernel's list of mounts.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func markOf(info fs.FileInfo) (DataMark, *syscall.Stat_t) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return DataMark{}, nil
	}
	return DataMark{Device: uint64(st.Dev), Inode: st.Ino}, st //nolint:unconvert // the width of Dev differs between systems
}

// standing is a directory as it is found: its mark, or not there.
func standing(path string) (mark DataMark, st *syscall.Stat_t, there bool, err error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return mark, nil, false, nil
	}
	if err != nil {
		return mark, nil, false, fmt.Errorf("looking at a data directory: %w", err)
	}
	mark, st = markOf(info)
	if st == nil || !info.IsDir() {
		return mark, nil, false, errorf(CodeDataDir, "", "%s is not a directory", path)
	}
	return mark, st, true, nil
}

// dataAside renames the data directory of a stopped node and makes an empty one in
// its place with the same owner and mode. Asked again after a crash between the
// two, it goes on; asked again after the end, it changes nothing.
func (h *hostOps) dataAside(ctx context.Context, m DataMove, log *txLog) (DataMoved, error) {
	res := DataMoved{Path: m.Path, Other: m.Aside(), Finished: true}
	if err := h.mayMove(ctx, m); err != nil {
		return DataMoved{}, err
	}
	dir, aside := h.cfg.path(m.Path), h.cfg.path(m.Aside())
	now, _, here, err := standing(dir)
	if err != nil {
		return DataMoved{}, err
	}
	was, st, moved, err := standing(aside)
	if err != nil {
		return DataMoved{}, err
	}
	if !moved {
		if err := movable(dir, here); err != nil {
			return DataMoved{}, err
		}
		mark := DataMark{Path: m.Path, Aside: m.Aside(), Device: now.Device, Inode: now.Inode}
		if err := h.dataStep(ctx, log, stepRenameAside, m.Aside(), &mark, func() error { return renameNew(dir, aside) }); err != nil {
			return DataMoved{}, err
		}
		if was, st, moved, err = standing(aside); err != nil || !moved {
			return DataMoved{}, errors.Join(err, errorf(CodeConflict, "look at the host", "%s is not there after the rename", m.Aside()))
		}
		here = false
	}
	if !remembered(log.entries, m, was) {
		return DataMoved{}, errorf(CodeConflict, "look at both directories on the host", "%s is there, and no log says that it was set aside from %s", m.Aside(), m.Path)
	}
	if here {
		return res, nil // the empty one was made, and a node may have begun to fill it
	}
	err = h.dataStep(ctx, log, stepMakeDir, m.Path, nil, func() error { return makeLike(dir, st) })
	return res, err
}

// movable refuses what holds no database: that it is missing or empty is for the
// caller to see, not to be set aside.
func movable(dir string, here bool) error {
	if !here {
		return errorf(CodeNotFound, "", "the data directory is not there")
	}
	if info, err := os.Lstat(filepath.Join(dir, databaseMark)); err != nil || !info.Mode().IsRegular() {
		return errorf(CodeDataDir, "look at it on the host", "the directory holds no database (there is no file %s in it), so it may not be the node's data", databaseMark)
	}
	return nil
}

// remembered says whether a log names this directory as the one renamed by this
// move.
func remembered(entries []TxEntry, m DataMove, mark DataMark) bool {
	return slices.ContainsFunc(entries, func(e TxEntry) bool {
		return e.Data != nil && e.Data.Path == m.Path && e.Data.Aside == m.Aside() && e.Data.Inode == mark.Inode && e.Data.Device == mark.Device
	})
}

// dataStep is one act between its intent and its outcome. A process that is dying
// does not begin it.
func (h *hostOps) dataStep(ctx context.Context, log *txLog, step, text string, mark *DataMark, do func() error) error {
	if err := log.add(TxEntry{Step: step, State: TxIntent, Text: text, Data: mark}); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := do(); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return errors.Join(err, log.add(TxEntry{Step: step, State: TxFailed, Text: err.Error()}))
	}
	return log.add(TxEntry{Step: step, State: TxDone, Text: text})
}

// renameNew renames a directory to a name that nothing has. (The kernel's own
// rename would replace an empty directory of that name.)
func renameNew(from, to string) error {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errorf(CodeConflict, "", "%s is there already", filepath.Base(to))
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("renaming a data directory: %w", err)
	}
	return syncDir(filepath.Dir(to))
}

// makeLike makes an empty directory with the owner and the mode of another one.
func makeLike(dir string, st *syscall.Stat_t) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making an empty data directory: %w", err)
	}
	if err := os.Lchown(dir, int(st.Uid), int(st.Gid)); err != nil {
		return fmt.Errorf("giving the empty data directory its owner: %w", err)
	}
	if err := os.Chmod(dir, fs.FileMode(st.Mode)&fs.ModePerm); err != nil {
		return fmt.Errorf("giving the empty data directory its mode: %w", err)
	}
	return syncDir(filepath.Dir(dir))
}

// dataBack takes a dataAside back. What has been written meanwhile is renamed, not
// deleted.
func (h *hostOps) dataBack(ctx context.Context, m DataMove, log *txLog) (DataMoved, error) {
	res := DataMoved{Path: m.Path, Finished: true}
	if err := h.mayMove(ctx, m); err != nil {
		return DataMoved{}, err
	}
	dir, aside, undone := h.cfg.path(m.Path), h.cfg.path(m.Aside()), m.beside("undone")
	was, _, moved, err := standing(aside)
	if err != nil {
		return DataMoved{}, err
	}
	now, _, here, err := standing(dir)
	if err != nil {
		return DataMoved{}, err
	}
	if _, err := os.Lstat(h.cfg.path(undone)); err == nil {
		res.Other = undone
	}
	switch {
	case !moved && here && (remembered(log.entries, m, now) || !everAside(log.entries, m)):
		return res, nil // it is back, or it never was away
	case !moved:
		return DataMoved{}, errorf(CodeNotFound, "look at the host", "%s is not there, so it cannot be put back", m.Aside())
	case !remembered(log.entries, m, was):
		return DataMoved{}, errorf(CodeConflict, "look at both directories on the host", "no log says that %s was set aside from %s", m.Aside(), m.Path)
	}
	if here {
		names, err := os.ReadDir(dir)
		if err != nil {
			return DataMoved{}, fmt.Errorf("looking at what stands in the place of the data: %w", err)
		}
		text := m.Path
		do := func() error { return os.Remove(dir) } // only an empty directory goes this way
		if len(names) > 0 {
			text, res.Other = undone, undone
			do = func() error { return renameNew(dir, h.cfg.path(undone)) }
		}
		if err := h.dataStep(ctx, log, stepClearDir, text, nil, do); err != nil {
			return DataMoved{}, err
		}
	}
	return res, h.dataStep(ctx, log, stepRenameBack, m.Path, nil, func() error { return renameNew(aside, dir) })
}

func everAside(entries []TxEntry, m DataMove) bool {
	return slices.ContainsFunc(entries, func(e TxEntry) bool { return e.Data != nil && e.Data.Aside == m.Aside() })
}

// changeData runs one data move. A rename that has begun lives on the process, as
// any transaction does; a copy, which may take hours, ends with the connection and
// goes on when it is asked for again.
func (a *agent) changeData(ctx context.Context, req request, claim Claim, watch func(TxEvent)) (any, error) {
	moves := map[string]struct {
		tx  string
		ctx context.Context
		do  func(context.Context, DataMove, *txLog) (DataMoved, error)
	}{
		methodDataAside: {txDataAside, a.life, a.ops.dataAside},
		methodDataBack:  {txDataBack, a.life, a.ops.dataBack},
		methodDataCopy:  {txDataCopy, ctx, a.ops.dataCopy},
	}
	move, known := moves[req.Method]
	if !known {
		return nil, errorf(CodeUnknown, "the agent on the host is of another version", "unknown request %q", req.Method)
	}
	return with(req, func(m DataMove) (DataMoved, error) {
		return logged(a.cfg, claim, m.Container, move.tx, watch, func(l *txLog) (DataMoved, error) { return move.do(move.ctx, m, l) })
	})
}

// Data reads what is in the data directory of a container, or in one that was set
// aside from it.
func (c *Client) Data(ctx context.Context, req DataRequest) (DataInventory, error) {
	var inv DataInventory
	err := c.do(ctx, methodData, nil, req, &inv, nil)
	return inv, err
}

// DataAside renames the data directory of a stopped node and leaves an empty one.
// Like the other two it may be asked again whatever became of the answer.
func (w *Writer) DataAside(ctx context.Context, m DataMove, ev func(TxEvent)) (DataMoved, error) {
	return w.data(ctx, methodDataAside, m, ev)
}

// DataCopy copies the data directory of a stopped node beside it; ErrNoSpace where
// it would not fit. With Seconds it is asked again until it is finished.
func (w *Writer) DataCopy(ctx context.Context, m DataMove, ev func(TxEvent)) (DataMoved, error) {
	return w.data(ctx, methodDataCopy, m, ev)
}

// DataBack takes a DataAside back; what was written meanwhile is renamed.
func (w *Writer) DataBack(ctx context.Context, m DataMove, ev func(TxEvent)) (DataMoved, error) {
	return w.data(ctx, methodDataBack, m, ev)
}

func (w *Writer) data(ctx context.Context, method string, m DataMove, ev func(TxEvent)) (DataMoved, error) {
	var r DataMoved
	err := w.do(ctx, method, m, &r, events(ev))
	return r, err
}
