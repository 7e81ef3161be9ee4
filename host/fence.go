package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	fenceFile = "fence.json"
	lockFile  = "fence.lock"
	// lockPoll is how often a newcomer looks whether the transaction in hand is over.
	lockPoll = 100 * time.Millisecond
)

// flock is the host-wide lock that a process holds for a whole local
// transaction. The kernel drops it when the process dies.
type flock struct{ f *os.File }

// lock waits for the host-wide lock, polling, so that a context can end it.
func (c Config) lock(ctx context.Context) (*flock, error) {
	if err := os.MkdirAll(c.state(), 0o700); err != nil {
		return nil, fmt.Errorf("making the state folder: %w", err)
	}
	t := time.NewTicker(lockPoll)
	defer t.Stop()
	for {
		l, err := tryLock(c.state(lockFile))
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the transaction in hand on this host: %w", ctx.Err())
		case <-t.C:
		}
	}
}

// tryLock locks the file that bears the name now; nil when that is not to be had
// at the moment.
func tryLock(name string) (*flock, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the host lock: %w", err)
	}
	return lockOpened(f, name)
}

// lockOpened locks an open file. One that was removed or replaced between the
// opening and the lock excludes nobody, for whoever comes next locks another one.
func lockOpened(f *os.File, name string) (*flock, error) {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
			return nil, nil
		}
		return nil, fmt.Errorf("locking the host: %w", err)
	}
	held, err := f.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = os.Stat(name); err == nil && os.SameFile(held, named) {
			return &flock{f}, nil
		}
	}
	f.Close()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking at the host lock: %w", err)
	}
	return nil, nil
}

func (l *flock) unlock() { l.f.Close() } // closing the only descriptor drops the lock

// readFence reads the record; nil when there is none.
func (c Config) readFence() (*FenceRecord, error) {
	raw, err := os.ReadFile(c.state(fenceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the fence record: %w", err)
	}
	var r FenceRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		// Not readable is not free: nobody may take over what cannot be read.
		return nil, errorf(CodeInternal, "look at the file on the host; it names who may change this host", "fence record %s is not valid JSON", filepath.Join(c.StateDir, fenceFile))
	}
	return &r, nil
}

func (c Config) writeFence(r FenceRecord) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the fence record: %w", err)
	}
	if err := writeAtomic(c.state(fenceFile), append(raw, '\n')); err != nil {
		return fmt.Errorf("writing the fence record: %w", err)
	}
	return nil
}

// writeAtomic replaces a file as a whole, on the disk before it returns.
func writeAtomic(name string, data []byte) (err error) {
	tmp := name + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	if _, err = f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err = f.Sync(); err != nil {
		f.Close()
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(tmp, name); err != nil {
		return err
	}
	return syncDir(filepath.Dir(name))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// judgeTake says whether a claim may become this host's record.
func judgeTake(rec *FenceRecord, claim Claim) *FencedError {
	if rec == nil {
		return nil
	}
	refuse := func(reason string) *FencedError { return &FencedError{Record: *rec, Claim: claim, Reason: reason} }
	other := rec.Store != claim.Store || rec.Fleet != claim.Fleet
	switch {
	case other && !rec.Released:
		return refuse("another store or fleet holds it")
	case claim.Epoch < rec.Epoch:
		return refuse("the epoch is smaller than the one accepted last")
	case claim.Epoch == rec.Epoch && (other || claim.Owner != rec.Owner || claim.Operation != rec.Operation):
		return refuse("the epoch belongs to another operation")
	}
	return nil
}

// judgeWrite says whether a claim is the one this host has accepted.
func judgeWrite(rec *FenceRecord, claim Claim) *FencedError {
	if rec == nil {
		return &FencedError{Claim: claim, Reason: "this claim has not been taken on this host"}
	}
	if err := judgeTake(rec, claim); err != nil {
		return err
	}
	if rec.Claim != claim || rec.Released {
		return &FencedError{Record: *rec, Claim: claim, Reason: "this claim has not been taken on this host"}
	}
	return nil
}

// takeOverParams name the record that a person decided to take over, and why.
type takeOverParams struct {
	Expect FenceRecord `json:"expect"`
	Reason string      `json:"reason"`
}

// takeOver replaces another store's record by a released one of this claim. Its
// epoch is above the old one, so the earlier holder is refused when it wakes up,
// also when it asks again; a record that has changed since the person saw it
// stays. The caller holds the host's lock, so a transaction in hand has ended.
func (c Config) takeOver(claim Claim, p takeOverParams) (FenceRecord, error) {
	rec, err := c.readFence()
	if err != nil {
		return FenceRecord{}, err
	}
	if rec == nil || rec.Claim != p.Expect.Claim || rec.Released != p.Expect.Released {
		return FenceRecord{}, errorf(CodeChanged, "look again: somebody else has changed it", "the fence record is not the one that was to be taken over")
	}
	if claim.Epoch <= rec.Epoch {
		return FenceRecord{}, errorf(CodeBadRequest, "", "epoch %d is not above the record's %d", claim.Epoch, rec.Epoch)
	}
	taken := FenceRecord{Claim: claim, Released: true, Since: time.Now().UTC(), Version: c.Version,
		Note: fmt.Sprintf("taken over from %s (operation %s, epoch %d): %s", rec.Owner, rec.Operation, rec.Epoch, p.Reason)}
	return taken, c.writeFence(taken)
}

func validClaim(c *Claim) error {
	if c == nil || c.Fleet == "" || c.Store == "" || c.Owner == "" || c.Operation == "" || c.Epoch == 0 {
		return errorf(CodeBadRequest, "", "a change needs a claim with fleet, store, owner, operation and epoch")
	}
	if !ValidContainerName(c.Operation) {
		return errorf(CodeBadRequest, "", "operation id %q cannot name a log file", c.Operation)
	}
	return nil
}

// mayWrite checks the claim against the record on disk.
func (c Config) mayWrite(claim Claim) error {
	rec, err := c.readFence()
	if err != nil {
		return err
	}
	if fe := judgeWrite(rec, claim); fe != nil {
		return fe
	}
	return nil
}
