package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// TrustResult is what Trust did for one address.
type TrustResult struct {
	Host        string // id, or a jump host as written
	Address     string
	Fingerprint string // kind and SHA256, "" when none was seen
	Outcome     TrustOutcome
	Err         error
}

// TrustOutcome is the end of one question.
type TrustOutcome string

// Outcomes of Trust.
const (
	TrustKnown    TrustOutcome = "known"    // known_hosts had it
	TrustAdded    TrustOutcome = "added"    // shown, confirmed and written
	TrustDeclined TrustOutcome = "declined" // shown, not confirmed
	TrustRefused  TrustOutcome = "refused"  // known_hosts holds another key: never replaced here
	TrustFailed   TrustOutcome = "failed"   // no key was seen
)

// Trust looks at the host keys of the hosts with these ids (none: all) and of
// the jump hosts on the way, shows each fingerprint that known_hosts does not
// hold, and appends those that the operator confirms to the first known_hosts
// file. A key that differs from a recorded one is refused, not asked about: a
// habit of saying yes must not cover that case. Jump hosts come first, since
// nothing behind them can be looked at before they are trusted.
func Trust(ctx context.Context, inv *Inventory, ids []string, opts Options) ([]TrustResult, error) {
	hosts, err := inv.Select(ids, nil)
	if err != nil {
		return nil, err
	}
	if opts.Prompt == nil {
		return nil, errors.New("trusting host keys: there is nobody to ask")
	}
	f := newFleet(inv, hosts, opts)
	defer f.Close()
	var results []TrustResult
	done := map[string]bool{}
	for _, h := range hosts {
		route, err := f.route(ctx, h, nil)
		if err != nil {
			results = append(results, TrustResult{Host: h.ID, Address: h.Address, Outcome: TrustFailed, Err: err})
			continue
		}
		for i := range route {
			if key := routeKey(route[:i+1]); !done[key] {
				done[key] = true
				results = append(results, f.trust(ctx, route[:i+1]))
			}
			if ctx.Err() != nil {
				return results, ctx.Err()
			}
		}
	}
	return results, nil
}

func (f *Fleet) trust(ctx context.Context, route []endpoint) TrustResult {
	last := route[len(route)-1]
	r := TrustResult{Host: last.name, Address: last.known(), Outcome: TrustFailed}
	key, err := f.dialer.scan(ctx, route)
	var fault *HostKeyError
	switch {
	case key != nil:
		r.Fingerprint = fingerprint(key)
	case errors.As(err, &fault):
		r.Fingerprint = fault.Presented
	}
	switch {
	case err == nil:
		r.Outcome = TrustKnown
		return r
	case !errors.As(err, &fault) || fault.Host != last.name:
		r.Err = err
		return r
	case fault.Fault != KeyUnknown:
		r.Outcome, r.Err = TrustRefused, err
		return r
	}
	yes, err := f.opts.Prompt.Confirm(ctx, fmt.Sprintf("host %s at %s shows host key %s, which known_hosts does not have. Is this the fingerprint on the host's console?", last.name, last.known(), r.Fingerprint))
	if err != nil {
		r.Err = err
		return r
	}
	if !yes {
		r.Outcome = TrustDeclined
		return r
	}
	if err := appendKnownHost(last.knownHosts[0], last.known(), key); err != nil {
		r.Err = err
		return r
	}
	f.dialer.known.forget()
	r.Outcome = TrustAdded
	return r
}

// scan begins a handshake at the end of route and stops once the host key was
// seen. It logs in nowhere but on the hops before.
func (d *dialer) scan(ctx context.Context, route []endpoint) (ssh.PublicKey, error) {
	var via *link
	last := route[len(route)-1]
	if before := route[:len(route)-1]; len(before) > 0 {
		var err error
		if via, err = d.link(ctx, before, true); err != nil {
			return nil, fmt.Errorf("host %s: by jump host %s: %w", last.name, before[len(before)-1].name, err)
		}
	}
	v, err := d.known.verifier(last.name, last.known(), last.knownHosts)
	if err != nil {
		return nil, err
	}
	bound, cancel := context.WithTimeoutCause(ctx, d.timeout, errConnectTimeout)
	defer cancel()
	a := &attempt{d: d, e: last, v: v, via: via, ctx: bound, scan: true}
	if _, err = a.run(); v.verified {
		return v.key, nil
	}
	return v.key, a.explain(ctx, err)
}

// appendKnownHost writes one line, making the file (0600) and its folder (0700)
// where they are missing. A last line without its newline is ended first.
func appendKnownHost(file, address string, key ssh.PublicKey) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("writing known_hosts: %w", err)
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("writing known_hosts: %w", err)
	}
	defer f.Close()
	line := knownhosts.Line([]string{address}, key) + "\n"
	if size, err := f.Seek(0, 2); err == nil && size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			line = "\n" + line
		}
	}
	if _, err := f.WriteString(line); err != nil {
		return fmt.Errorf("writing known_hosts: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("writing known_hosts: %w", err)
	}
	return f.Close()
}

// TrustSummary says in one line how a Trust went.
func TrustSummary(results []TrustResult) string {
	count := map[TrustOutcome]int{}
	for _, r := range results {
		count[r.Outcome]++
	}
	var words []string
	for _, o := range []TrustOutcome{TrustKnown, TrustAdded, TrustDeclined, TrustRefused, TrustFailed} {
		if count[o] > 0 {
			words = append(words, fmt.Sprintf("%d %s", count[o], o))
		}
	}
	return strings.Join(slices.Clip(words), ", ")
}
