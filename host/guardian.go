package host

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// Words on the link between agent and guardian.
const (
	linkReady = "ready"
	linkBye   = "bye"
	linkClaim = "claim " // and the claim as JSON: what the agent changes this host under
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
		return takeOver(ctx, cfg, Claim{})
	}
	end := make(chan farewell, 1)
	go func() { end <- listen(link) }()
	var last farewell
	select {
	case <-ctx.Done():
		return ctx.Err()
	case last = <-end:
	}
	if last.bye {
		return nil
	}
	return takeOver(ctx, cfg, last.claim)
}

// farewell is how the link to process A ended, and the claim it worked under.
type farewell struct {
	bye   bool
	claim Claim
}

func listen(link io.Reader) (f farewell) {
	s := bufio.NewScanner(link)
	for s.Scan() {
		if s.Text() == linkBye {
			f.bye = true
			return f
		}
		var c Claim
		if raw, ok := strings.CutPrefix(s.Text(), linkClaim); ok && json.Unmarshal([]byte(raw), &c) == nil {
			f.claim = c
		}
	}
	return f
}

// takeOver settles what a dead agent has left. The fence decides whether it is
// still ours to settle: the record must be that of the agent's own claim, under
// which it may also have settled what was older, or still the one under which the
// transaction began. A newer claim settles by itself.
func takeOver(ctx context.Context, cfg Config, claim Claim) error {
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
		if rec != nil && (rec.Epoch == s.Epoch || rec.Claim == claim && s.Epoch <= rec.Epoch) {
			return nil
		}
		return errorf(CodeFenced, "", "another claim has taken this host over")
	}
	err = newOps(cfg).settleAll(ctx, byGuardian, cfg.engineWait(), ours)
	if isCode(err, CodeFenced) {
		return nil
	}
	return err
}

// ensureGuardian starts process B, or starts it again when it has died, and
// tells it under which claim this agent works: no transaction begins without one
// that knows.
func (a *agent) ensureGuardian(claim Claim) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.guardian != nil {
		select {
		case <-a.guardian.Done():
		default:
			if a.told == claim || a.tell(a.guardian, claim) == nil {
				return nil
			}
		}
		a.guardian.Close()
		a.guardian = nil
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
	if err == nil {
		err = a.tell(g, claim)
	}
	if err != nil {
		g.Close()
		return errorf(CodeGuardian, "", "starting the guardian process: %v", err)
	}
	a.guardian = g
	return nil
}

// tell names the claim to a guardian. The caller holds a.mu.
func (a *agent) tell(g io.Writer, claim Claim) error {
	raw, err := json.Marshal(claim)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(g, linkClaim+string(raw)+"\n"); err != nil {
		return err
	}
	a.told = claim
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
