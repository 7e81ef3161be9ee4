package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// copyReserve is what a copy leaves free, in bytes: the node lives on this disk
// too and must be able to start.
const copyReserve = 5 << 30

// partSuffix is on the name of a copy that is not whole.
const partSuffix = ".part"

// dataCopy copies the data directory of a stopped node beside it. The copy bears
// its name only when it is whole and its inventory is that of the original; one
// that was broken off goes on where it stood.
func (h *hostOps) dataCopy(ctx context.Context, m DataMove, log *txLog) (DataMoved, error) {
	res := DataMoved{Path: m.Path, Other: m.Copy()}
	if err := h.mayMove(ctx, m); err != nil {
		return DataMoved{}, err
	}
	from, to, part := h.cfg.path(m.Path), h.cfg.path(m.Copy()), h.cfg.path(m.Copy()+partSuffix)
	_, _, here, err := standing(from)
	if err != nil {
		return DataMoved{}, err
	}
	if err := movable(from, here); err != nil {
		return DataMoved{}, err
	}
	var want DataInventory
	if err := readTree(ctx, from, &want); err != nil {
		return DataMoved{}, err
	}
	res.Total = want.Bytes
	if done, err := sameAs(ctx, to, want); err != nil || done {
		res.Finished, res.Bytes = done, want.Bytes
		return res, err
	}
	if err := h.roomFor(ctx, m, want.Bytes, part); err != nil {
		return DataMoved{}, err
	}
	var deadline time.Time
	if m.Seconds > 0 {
		deadline = time.Now().Add(time.Duration(m.Seconds) * time.Second)
	}
	c := &copier{ctx: ctx, from: from, to: part, deadline: deadline}
	err = h.dataStep(ctx, log, stepCopyData, m.Copy(), nil, c.run)
	if res.Bytes = c.bytes; errors.Is(err, errCopyTime) {
		return res, nil
	}
	if err != nil {
		return DataMoved{}, err
	}
	if whole, err := sameAs(ctx, part, want); err != nil || !whole {
		return DataMoved{}, errors.Join(err, errorf(CodeConflict, "see what writes to the disk of the node", "the copy %s is not what is in %s", m.Copy()+partSuffix, m.Path))
	}
	res.Finished = true
	return res, h.dataStep(ctx, log, stepNameCopy, m.Copy(), nil, func() error { return renameNew(part, to) })
}

// sameAs says whether a directory is there and holds what is wanted; one that is
// there and differs is an error unless it is a part.
func sameAs(ctx context.Context, dir string, want DataInventory) (bool, error) {
	var have DataInventory
	if err := readTree(ctx, dir, &have); err != nil || !have.Exists {
		return false, err
	}
	if have.Digest != want.Digest && filepath.Ext(dir) != partSuffix {
		return false, errorf(CodeConflict, "look at both directories on the host", "%s is there and holds something else", filepath.Base(dir))
	}
	return have.Digest == want.Digest, nil
}

// roomFor refuses a copy that would not fit; what an earlier try has copied counts.
func (h *hostOps) roomFor(ctx context.Context, m DataMove, total uint64, part string) error {
	var had DataInventory
	if err := readTree(ctx, part, &had); err != nil {
		return err
	}
	need := total - min(total, had.Bytes) + copyReserve
	disk := h.disk(filepath.Dir(m.Path))
	if disk.Error != "" {
		return errorf(CodeNoSpace, "", "how much space is left for a copy is not known: %s", disk.Error)
	}
	if disk.FreeBytes < need {
		return errorf(CodeNoSpace, "make room on that disk; nothing of the node's data may be deleted for it",
			"a copy of %s needs %d bytes (%d of them kept free), and %d are free", m.Path, need, uint64(copyReserve), disk.FreeBytes)
	}
	return nil
}

// errCopyTime says that the time of one request is over.
var errCopyTime = errors.New("the copy goes on in the next request")

// copier copies a tree. A file that is whole has the time of its original, which
// is set last: by that a later try tells it from one that was broken off.
type copier struct {
	ctx      context.Context
	from, to string
	deadline time.Time
	bytes    uint64 // copied so far, by earlier tries too
}

func (c *copier) run() error {
	return filepath.WalkDir(c.from, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = c.ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(c.from, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return c.entry(p, filepath.Join(c.to, rel), info)
	})
}

func (c *copier) entry(from, to string, info fs.FileInfo) error {
	_, st := markOf(info)
	switch {
	case st == nil:
		return fmt.Errorf("the owner of %s cannot be read", from)
	case info.IsDir():
		return makeLike(to, st)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err == nil {
			err = os.Symlink(target, to)
		}
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
		return err
	case !info.Mode().IsRegular():
		return errorf(CodeDataDir, "look at it on the host", "%s is neither a file nor a directory and cannot be copied", from)
	}
	if had, err := os.Lstat(to); err == nil && had.Mode().IsRegular() && had.Size() == info.Size() && had.ModTime().Equal(info.ModTime()) {
		c.bytes += uint64(info.Size())
		return nil
	}
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		return errCopyTime
	}
	if err := copyFile(c.ctx, from, to, info.Mode().Perm()); err != nil {
		return fmt.Errorf("copying a data directory: %w", err)
	}
	c.bytes += uint64(info.Size())
	return errors.Join(os.Lchown(to, int(st.Uid), int(st.Gid)), os.Chmod(to, info.Mode().Perm()), os.Chtimes(to, info.ModTime(), info.ModTime()))
}

// copyFile copies one file and makes it durable.
func copyFile(ctx context.Context, from, to string, mode fs.FileMode) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	for {
		n, err := io.CopyN(dst, src, copyPiece)
		if err == nil && n == copyPiece {
			err = ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			return errors.Join(dst.Sync(), dst.Close())
		}
		if err != nil {
			return errors.Join(err, dst.Close())
		}
	}
}

// copyPiece is how much is copied between two looks at the context, in bytes.
const copyPiece = 64 << 20
