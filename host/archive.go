package host

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	archiveSuffix = ".log.gz"
	defaultKeep   = 5
	// archiveReserve is what an archive leaves free: the node lives on this disk too.
	archiveReserve = 512 << 20
	// archiveCheck is how many bytes are written between two looks at the disk.
	archiveCheck = 64 << 20
)

// finishTx archives the log of the container that was set aside and removes it.
func (h *hostOps) finishTx(ctx context.Context, req FinishRequest, log *txLog) (FinishResult, error) {
	var res FinishResult
	if err := validNames(req.Container, req.AsideName); err != nil {
		return res, err
	}
	if !filepath.IsAbs(req.LogDir) {
		return res, errorf(CodeBadRequest, "", "the folder for logs must be an absolute path")
	}
	dir := h.cfg.path(req.LogDir)
	aside, err := h.removable(ctx, req, log.entries)
	if done := filepath.Join(dir, req.AsideName+archiveSuffix); isCode(err, CodeNotFound) && removedBefore(log.entries, req.AsideName) {
		if st, serr := os.Stat(done); serr == nil { // asked again for what is done
			return FinishResult{Archive: filepath.Join(req.LogDir, req.AsideName+archiveSuffix), Bytes: st.Size()}, nil
		}
	}
	if err != nil {
		return res, err
	}
	id := str(aside, "Id")
	if err := log.add(TxEntry{Step: stepArchive, State: TxIntent, Text: req.AsideName + archiveSuffix}); err != nil {
		return res, err
	}
	res.Archive = filepath.Join(req.LogDir, req.AsideName+archiveSuffix)
	if res.Bytes, err = h.archive(ctx, aside, filepath.Join(dir, req.AsideName+archiveSuffix)); err != nil {
		if ctx.Err() != nil {
			return res, err
		}
		return res, errors.Join(err, log.add(TxEntry{Step: stepArchive, State: TxFailed, Text: err.Error()}))
	}
	if err := log.add(TxEntry{Step: stepArchive, State: TxDone, Text: res.Archive}); err != nil {
		return res, err
	}
	if res.Pruned, err = prune(dir, req.Container, req.Keep); err != nil {
		return res, err
	}
	if _, err := h.removable(ctx, req, log.entries); err != nil { // the archive may have taken minutes
		return res, err
	}
	if err := log.add(TxEntry{Step: stepRemoveAside, State: TxIntent}); err != nil {
		return res, err
	}
	if err := h.eng.remove(ctx, id); err != nil && !isCode(err, CodeNotFound) {
		if ctx.Err() != nil {
			return res, err
		}
		return res, errors.Join(err, log.add(TxEntry{Step: stepRemoveAside, State: TxFailed, Text: err.Error()}))
	}
	return res, log.add(TxEntry{Step: stepRemoveAside, State: TxDone})
}

// removedBefore says whether an earlier finish got as far as removing that container.
func removedBefore(entries []TxEntry, aside string) bool {
	archived := false
	for _, e := range entries {
		archived = archived || e.Step == stepArchive && e.Text == aside+archiveSuffix
		if archived && e.Step == stepRemoveAside {
			return true
		}
	}
	return false
}

// removable reads the container set aside and refuses while it could be needed:
// the node must run on another one, and the old one be stopped for good. A successor
// that failed is of no use to a node that is down on its old container either.
func (h *hostOps) removable(ctx context.Context, req FinishRequest, entries []TxEntry) (object, error) {
	_, cur, err := h.eng.inspect(ctx, req.Container)
	if err != nil {
		return nil, fmt.Errorf("reading the successor: %w", err)
	}
	_, aside, err := h.eng.inspect(ctx, req.AsideName)
	if err != nil {
		return nil, fmt.Errorf("reading the container that was set aside: %w", err)
	}
	st := str(sub(cur, "State"), "Status")
	switch {
	case str(cur, "Id") == str(aside, "Id"):
		return nil, errorf(CodeChanged, "", "%s and %s are one container", req.Container, req.AsideName)
	case st != "running" && !failedOf(entries, str(aside, "Id"), req.AsideName):
		return nil, errorf(CodeConflict, "put the old one back, or wait until the node runs", "the successor is %s: the old container stays", st)
	case stateRuns(str(sub(aside, "State"), "Status")):
		return nil, errorf(CodeConflict, "", "%s is not stopped", req.AsideName)
	case policyFrom(aside).Name != "no":
		return nil, errorf(CodeConflict, "", "%s has a restart policy: it was not set aside by this tool", req.AsideName)
	}
	return aside, nil
}

// failedOf says whether a container is a successor that failed, by the log and by its
// name, and nobody's way back.
func failedOf(entries []TxEntry, id, name string) bool {
	failed := false
	for _, e := range entries {
		if e.Spec != nil && e.Spec.OldID == id {
			return false
		}
		failed = failed || e.Spec != nil && e.Spec.NextID == id && e.Spec.FailedName == name
	}
	return failed
}

// archive writes the whole log, gzipped, on the disk before it returns. A name
// without the suffix of an unfinished file is always a whole archive.
func (h *hostOps) archive(ctx context.Context, aside object, name string) (n int64, err error) {
	if st, err := os.Stat(name); err == nil {
		return st.Size(), nil // an earlier try had got this far
	}
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("making the folder for logs: %w", err)
	}
	// Node logs shrink to about a tenth; a fifth is asked for.
	if err := h.room(dir, h.logBytes(str(aside, "LogPath"))/5); err != nil {
		return 0, err
	}
	src, err := h.eng.logs(ctx, str(aside, "Id"), sub(aside, "Config")["Tty"] == true, "")
	if err != nil {
		return 0, fmt.Errorf("reading the log: %w", err)
	}
	defer src.Close()
	part := name + ".partial"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, fmt.Errorf("writing the archive: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(part)
		}
	}()
	if err := h.compress(f, src, dir); err != nil {
		return 0, noSpace(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return 0, noSpace(fmt.Errorf("writing the archive: %w", err))
	}
	if err := os.Rename(part, name); err != nil {
		return 0, fmt.Errorf("writing the archive: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return 0, fmt.Errorf("writing the archive: %w", err)
	}
	st, err := os.Stat(name)
	if err != nil {
		return 0, fmt.Errorf("writing the archive: %w", err)
	}
	return st.Size(), nil
}

func (h *hostOps) compress(w io.Writer, src io.Reader, dir string) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed) // the node needs the processor more
	if err != nil {
		return fmt.Errorf("compressing the log: %w", err)
	}
	for {
		n, err := io.CopyN(z, src, archiveCheck)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("compressing the log after %d bytes: %w", n, err)
		}
		if err := h.room(dir, 0); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("compressing the log: %w", err)
	}
	return nil
}

// room refuses when writing want bytes would leave less than the reserve.
func (h *hostOps) room(dir string, want int64) error {
	if h.cfg.Facts == nil {
		return nil
	}
	d, err := h.cfg.Facts.Disk(dir)
	if err != nil {
		return fmt.Errorf("reading the free space of the folder for logs: %w", err)
	}
	if d.FreeBytes < uint64(max(want, 0))+archiveReserve {
		return errorf(CodeNoSpace, "free space there, or set another folder for the log archive", "not enough space to archive the log: %d bytes free, %d needed", d.FreeBytes, want+archiveReserve)
	}
	return nil
}

func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return errorf(CodeNoSpace, "free space there, or set another folder for the log archive", "%v", err)
	}
	return err
}

// prune keeps the newest archives of one container. The time in their names
// sorts; files of another shape are left alone.
func prune(dir, container string, keep int) ([]string, error) {
	if keep <= 0 {
		keep = defaultKeep
	}
	all, err := filepath.Glob(filepath.Join(dir, "*"+archiveSuffix))
	if err != nil {
		return nil, fmt.Errorf("listing the archives: %w", err)
	}
	var ours []string
	for _, f := range all {
		if strings.HasPrefix(filepath.Base(f), container+"-pre-") {
			ours = append(ours, f)
		}
	}
	slices.Sort(ours)
	var gone []string
	for len(ours) > keep {
		if err := os.Remove(ours[0]); err != nil {
			return gone, fmt.Errorf("removing an old archive: %w", err)
		}
		gone = append(gone, filepath.Base(ours[0]))
		ours = ours[1:]
	}
	return gone, nil
}
