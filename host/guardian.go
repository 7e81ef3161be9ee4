package host

import (
	"bufio"
	"context"
	"errors"
	"io"
)

// Words on the link between agent and guardian.
const (
	linkReady = "ready"
	linkBye   = "bye"
)

// Guard is process B: it watches the link to process A. When that breaks without
// a farewell, A has died; Guard then waits for the host's lock, which the kernel
// has taken from A, looks at what is there and finishes or undoes the
// transaction A had in hand. It returns when there is nothing left to do.
func Guard(ctx context.Context, cfg Config, link io.ReadWriteCloser) error {
	if cfg.detach {
		detach()
	}
	defer link.Close()
	if _, err := io.WriteString(link, linkReady+"\n"); err != nil {
		return takeOver(ctx, cfg)
	}
	bye := make(chan bool, 1)
	go func() {
		s := bufio.NewScanner(link)
		for s.Scan() {
			if s.Text() == linkBye {
				bye <- true
				return
			}
		}
		bye <- false
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case ok := <-bye:
		if ok {
			return nil
		}
	}
	return takeOver(ctx, cfg)
}

// takeOver settles what a dead agent has left. The fence decides whether it is
// still ours to settle: a newer claim settles by itself.
func takeOver(ctx context.Context, cfg Config) error {
	lock, err := cfg.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.unlock()
	ours := func(s TxSpec) error {
		rec, err := cfg.readFence()
		if err != nil {
			return err
		}
		if rec == nil || rec.Epoch != s.Epoch {
			return errorf(CodeFenced, "", "another claim has taken this host over")
		}
		return nil
	}
	err = newOps(cfg).settleAll(ctx, byGuardian, cfg.engineWait(), ours)
	if isCode(err, CodeFenced) {
		return nil
	}
	return err
}

// ensureGuardian starts process B, or starts it again when it has died: no
// transaction begins without one.
func (a *agent) ensureGuardian() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.guardian != nil {
		select {
		case <-a.guardian.Done():
			a.guardian.Close()
			a.guardian = nil
		default:
			return nil
		}
	}
	if a.cfg.StartGuardian == nil {
		return errorf(CodeGuardian, "", "this agent has no way to start its guardian")
	}
	g, err := a.cfg.StartGuardian(a.life)
	if err != nil {
		return errorf(CodeGuardian, "", "starting the guardian process: %v", err)
	}
	ready := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(g).ReadString('\n')
		if err == nil && line != linkReady+"\n" {
			err = errors.New("it did not say that it is ready")
		}
		ready <- err
	}()
	ctx, cancel := context.WithTimeout(a.life, guardianBoot)
	defer cancel()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		g.Close()
		return errorf(CodeGuardian, "", "starting the guardian process: %v", err)
	}
	a.guardian = g
	return nil
}

// dismiss sends the guardian home and waits until it has gone.
func (a *agent) dismiss() {
	a.mu.Lock()
	g := a.guardian
	a.guardian = nil
	a.mu.Unlock()
	if g == nil {
		return
	}
	if _, err := io.WriteString(g, linkBye+"\n"); err == nil {
		ctx, cancel := context.WithTimeout(a.life, guardianEnds)
		select {
		case <-g.Done():
		case <-ctx.Done():
		}
		cancel()
	}
	g.Close()
}
