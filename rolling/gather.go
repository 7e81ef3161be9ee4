package rolling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lease"
)

// atOnce bounds how many hosts are spoken to at the same time.
const atOnce = 16

// Gather asks the host agents what a plan rests on: facts, what a successor
// would carry over, and which digest the image name means. It changes nothing
// on the hosts but places the agent's file where it is missing.
func Gather(ctx context.Context, f *fleet.Fleet, spec Spec) (Inputs, error) {
	in := Inputs{Nodes: map[string]NodeInput{}}
	if spec.Image != "" {
		image, err := resolve(ctx, f, spec)
		if err != nil {
			return in, err
		}
		in.Image = &image
	}
	var mu sync.Mutex
	eachOf(ctx, spec.Targets, func(ctx context.Context, id string) {
		input := gatherNode(ctx, f, id, in.Image, spec)
		mu.Lock()
		defer mu.Unlock()
		in.Nodes[id] = input
	})
	return in, ctx.Err()
}

// eachOf runs fn for every id, at most atOnce at a time, and waits for all.
func eachOf(ctx context.Context, ids []string, fn func(context.Context, string)) {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, id := range ids {
		group.Go(func() error {
			fn(ctx, id)
			return nil
		})
	}
	_ = group.Wait() // fn reports through its own results
}

// resolve asks the targets' engines, in order, which digest the name means;
// the first that answers decides for all, so that a tag that moves during the
// roll cannot put a second build on part of the fleet.
func resolve(ctx context.Context, f *fleet.Fleet, spec Spec) (host.Image, error) {
	ref, err := ResolveRef(spec.Image, f.Inventory().Registry)
	if err != nil {
		return host.Image{}, err
	}
	var last error
	for _, id := range spec.Targets {
		agent, err := agentOf(ctx, f, id)
		if err != nil {
			last = err
			continue
		}
		image, err := agent.Resolve(ctx, ref)
		if err == nil {
			return image, nil
		}
		if errors.Is(err, host.ErrNotFound) || errors.Is(err, host.ErrAuth) {
			return host.Image{}, &ImageError{Image: ref, Reason: "cannot be resolved by host " + id, Err: err,
				What: "check the name and the tag, and the registry login of the host (docker login on the host)"}
		}
		last = fmt.Errorf("host %s: %w", id, err)
	}
	if last == nil {
		last = errors.New("no target to ask")
	}
	return host.Image{}, &ImageError{Image: ref, Reason: "no host could resolve it", Err: last,
		What: "see that at least one target is reachable and its engine can reach the registry"}
}

func gatherNode(ctx context.Context, f *fleet.Fleet, id string, image *host.Image, spec Spec) NodeInput {
	h, ok := f.Inventory().Host(id)
	if !ok {
		return NodeInput{Err: fmt.Errorf("host %s is not in the inventory", id)}
	}
	agent, err := agentOf(ctx, f, id)
	if err != nil {
		return NodeInput{Err: err}
	}
	var in NodeInput
	in.Facts, err = agent.Facts(ctx, host.FactsRequest{Container: h.Container, DataPaths: []string{f.Inventory().LogArchive}})
	if err != nil {
		return NodeInput{Err: fmt.Errorf("facts: %w", err)}
	}
	if in.Facts.Container == nil {
		return in
	}
	if err := engineDisk(ctx, agent, &in.Facts); err != nil {
		return NodeInput{Err: err}
	}
	in.Present = present(in.Facts.Container)
	if running, err := agent.Resolve(ctx, in.Facts.Container.ImageID); err == nil {
		in.Present.SizeBytes = running.SizeBytes
	}
	hello, err := agent.Hello(ctx)
	if err != nil {
		return NodeInput{Err: err}
	}
	in.Present.Arch = hello.Arch
	digest := in.Present.Digest
	if image != nil {
		digest = image.Digest
	}
	if digest == "" {
		digest = in.Present.ID
	}
	in.Carry, err = agent.Carry(ctx, host.CarryRequest{Container: h.Container, ImageDigest: digest, SetEnv: spec.SetEnv, OneShot: Plan{Arm: spec.Arm}.oneShot()})
	if err != nil {
		return NodeInput{Facts: in.Facts, Present: in.Present, Err: fmt.Errorf("carry-over: %w", err)}
	}
	in.Present.Build = in.Carry.OldBuild
	return in
}

// engineDisk adds the disk that images are pulled to; where that is, only the
// engine itself can say.
func engineDisk(ctx context.Context, agent *host.Client, facts *host.Facts) error {
	if facts.Engine.Root == "" {
		return nil
	}
	more, err := agent.Facts(ctx, host.FactsRequest{DataPaths: []string{facts.Engine.Root}})
	if err != nil {
		return fmt.Errorf("facts: %w", err)
	}
	facts.Disks = append(facts.Disks, more.Disks...)
	return nil
}

// present describes the image a container runs now.
func present(c *host.ContainerFacts) host.Image {
	image := host.Image{Ref: c.ImageRef, ID: c.ImageID, Present: true}
	if len(c.ImageDigests) > 0 {
		image.Digest = c.ImageDigests[0]
	}
	return image
}

func agentOf(ctx context.Context, f *fleet.Fleet, id string) (*host.Client, error) {
	conn, err := connOf(ctx, f, id)
	if err != nil {
		return nil, err
	}
	return agentOn(ctx, conn, id)
}

func agentOn(ctx context.Context, conn *fleet.Conn, id string) (*host.Client, error) {
	agent, err := conn.Agent(ctx)
	if err != nil {
		return nil, fmt.Errorf("host %s: starting the agent: %w", id, err)
	}
	return agent, nil
}

// connOf returns the connection of the run, dialling again only where the old
// one is known to be dead; nothing that changes a host is ever repeated by it.
func connOf(ctx context.Context, f *fleet.Fleet, id string) (*fleet.Conn, error) {
	conn, err := f.Conn(ctx, id)
	var dropped *fleet.DroppedError
	if errors.As(err, &dropped) {
		return f.Redial(ctx, id)
	}
	return conn, err
}

// redialWait bounds one attempt to reach the node in hand again, so that its
// deadlines are still looked at while its host is away.
const redialWait = 10 * time.Second

// reach is connOf for the node in hand, which could be reached when its turn
// began: a host that is booting refuses connections for minutes, so an attempt
// that failed is no reason not to try again.
func reach(ctx context.Context, f *fleet.Fleet, id string) (*fleet.Conn, error) {
	conn, err := connOf(ctx, f, id)
	var (
		away *fleet.UnreachableError
		slow *fleet.TimeoutError
	)
	if errors.As(err, &away) || errors.As(err, &slow) {
		limit, cancel := context.WithTimeout(ctx, redialWait)
		defer cancel()
		return f.Redial(limit, id)
	}
	return conn, err
}

// agentAgain is agentOf for the node in hand. An agent that died is followed by
// a new one over a new connection: the host knows what the old one did.
func agentAgain(ctx context.Context, f *fleet.Fleet, id string) (*host.Client, error) {
	conn, err := reach(ctx, f, id)
	if err != nil {
		return nil, err
	}
	agent, err := agentOn(ctx, conn, id)
	var ended *fleet.AgentError
	if !errors.As(err, &ended) {
		return agent, err
	}
	if conn, err = f.Redial(ctx, id); err != nil {
		return nil, err
	}
	return agentOn(ctx, conn, id)
}

// writerOf is the writing half of the agent of the node in hand.
func writerOf(ctx context.Context, f *fleet.Fleet, id string, token lease.Token) (*host.Writer, error) {
	if _, err := agentAgain(ctx, f, id); err != nil {
		return nil, err
	}
	conn, err := connOf(ctx, f, id)
	if err != nil {
		return nil, err
	}
	return conn.Writer(ctx, token)
}

// ReadFences reads the fence record of every host that answers, before any
// other check of a mutating command. It returns the highest epoch seen in any
// of them; an unreleased record of another store is a *host.FencedError.
func ReadFences(ctx context.Context, f *fleet.Fleet, store string) (uint64, error) {
	var (
		mu      sync.Mutex
		highest uint64
		foreign []error
	)
	eachOf(ctx, f.Inventory().IDs(), func(ctx context.Context, id string) {
		agent, err := agentOf(ctx, f, id)
		if err != nil {
			return // counted as down by every later check
		}
		record, err := agent.Fence(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			if !isGone(err) {
				foreign = append(foreign, fmt.Errorf("host %s: reading the fence: %w", id, err))
			}
			return
		}
		if record == nil {
			return
		}
		highest = max(highest, record.Epoch)
		if record.Store != store && !record.Released {
			foreign = append(foreign, fmt.Errorf("host %s: %w", id, &host.FencedError{Record: *record,
				Claim: host.Claim{Fleet: f.Inventory().Name, Store: store}, Reason: "an operation of another store holds it"}))
		}
	})
	return highest, errors.Join(foreign...)
}

func isGone(err error) bool {
	var gone *host.ConnectionError
	return errors.As(err, &gone)
}

// TakeFences writes the epoch of the token to every host that answers, before
// the first change: from then on a paused operator with an older epoch is
// refused everywhere. Hosts named in must have to accept it.
func TakeFences(ctx context.Context, f *fleet.Fleet, token lease.Token, must []string) error {
	needed := map[string]bool{}
	for _, id := range must {
		needed[id] = true
	}
	return fenceEach(ctx, f, token, func(ctx context.Context, w *host.Writer) error {
		_, err := w.TakeFence(ctx)
		return err
	}, func(id string, err error) bool { return needed[id] || isFenced(err) })
}

// ReleaseFences marks the records of this token as released, where the hosts
// can be reached; a record that stays unreleased is settled by its own store.
func ReleaseFences(ctx context.Context, f *fleet.Fleet, token lease.Token) error {
	return fenceEach(ctx, f, token, func(ctx context.Context, w *host.Writer) error {
		return w.ReleaseFence(ctx)
	}, func(_ string, err error) bool { return !isFenced(err) && !unreached(err) })
}

// unreached says that a host could not be spoken to at all. A fence that was
// never taken there, or cannot be given back now, is settled by the store that
// wrote it; it is no failure of what was done elsewhere.
func unreached(err error) bool {
	var never *unreachedError
	return errors.As(err, &never)
}

// unreachedError marks a failure before the first request.
type unreachedError struct{ err error }

func (e *unreachedError) Error() string { return e.err.Error() }

func (e *unreachedError) Unwrap() error { return e.err }

func fenceEach(ctx context.Context, f *fleet.Fleet, token lease.Token, do func(context.Context, *host.Writer) error, counts func(string, error) bool) error {
	var (
		mu   sync.Mutex
		errs []error
	)
	eachOf(ctx, f.Inventory().IDs(), func(ctx context.Context, id string) {
		err := fenceOne(ctx, f, token, id, do)
		if err == nil || !counts(id, err) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, fmt.Errorf("host %s: %w", id, err))
	})
	return errors.Join(errs...)
}

// fenceOne does it on one host, and once more over a new connection where the
// answer was lost: taking and releasing a fence twice is the same as once.
func fenceOne(ctx context.Context, f *fleet.Fleet, token lease.Token, id string, do func(context.Context, *host.Writer) error) error {
	conn, err := connOf(ctx, f, id)
	if err != nil {
		return &unreachedError{err} // a host that is down is not waited for here
	}
	w, err := conn.Writer(ctx, token)
	if err == nil {
		err = do(ctx, w)
	}
	var ended *fleet.AgentError
	if !isGone(err) && !errors.As(err, &ended) {
		return err
	}
	if w, err = writerOf(ctx, f, id, token); err != nil {
		return err
	}
	return do(ctx, w)
}

func isFenced(err error) bool {
	var fenced *host.FencedError
	return errors.As(err, &fenced)
}
