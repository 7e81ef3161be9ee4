package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// maxHops ends chains that ssh's settings let run in a circle; those of
// hosts.toml are checked by Load.
const maxHops = 8

// route is the chain of hops to a host, the host itself last. What hosts.toml
// says wins over ssh's settings, and those over the defaults.
func (f *Fleet) route(ctx context.Context, h Host, seen []string) ([]endpoint, error) {
	if slices.Contains(seen, h.ID) || len(seen) > maxHops {
		return nil, fmt.Errorf("host %s: jump hosts run in a circle: %s", h.ID, strings.Join(append(seen, h.ID), " -> "))
	}
	e := endpoint{name: h.ID, address: h.Address, port: h.Port, user: h.User, knownHosts: f.inv.SSH.KnownHosts, only: f.inv.SSH.IdentitiesOnly}
	if h.Key != "" {
		e.keys = []string{h.Key}
	}
	jump := h.Jump
	if f.inv.SSH.UseConfig {
		set, err := f.config.ask(ctx, h.Address, saidUser(h), saidPort(h))
		if err != nil {
			return nil, fmt.Errorf("host %s: %w", h.ID, err)
		}
		if !h.said.jump {
			if set.jump == "" && set.command != "" {
				return nil, &ProxyCommandError{Host: h.ID, Command: set.command}
			}
			jump = set.jump
		}
		e.apply(set, h.said)
	}
	hops, err := f.hops(ctx, jump, append(slices.Clone(seen), h.ID))
	return append(hops, e), err
}

// apply takes from ssh's settings what hosts.toml leaves open.
func (e *endpoint) apply(set sshSettings, said saidFields) {
	if set.hostname != "" {
		e.address = set.hostname
	}
	if !said.user && set.user != "" {
		e.user = set.user
	}
	if !said.port && set.port != 0 {
		e.port = set.port
	}
	if !said.key {
		e.keys, e.only = set.keys, set.only
	}
	e.alias = set.alias
	for _, file := range set.knownHosts {
		if !slices.Contains(e.knownHosts, file) {
			e.knownHosts = append(slices.Clone(e.knownHosts), file)
		}
	}
}

func saidUser(h Host) string {
	if h.said.user {
		return h.User
	}
	return ""
}

func saidPort(h Host) int {
	if h.said.port {
		return h.Port
	}
	return 0
}

// hops resolves a jump list, nearest first. An id of the inventory brings the
// host's own settings, and as the first word its own jump hosts as well.
func (f *Fleet) hops(ctx context.Context, jump string, seen []string) ([]endpoint, error) {
	var route []endpoint
	if jump == "" {
		return nil, nil
	}
	for i, word := range strings.Split(jump, ",") {
		h, ok := f.inv.Host(word)
		if !ok {
			var err error
			if h, err = f.writtenHop(word, seen); err != nil {
				return nil, err
			}
		}
		chain, err := f.route(ctx, h, seen)
		if err != nil {
			return nil, err
		}
		if i > 0 { // the words before are the way to it
			chain = chain[len(chain)-1:]
		}
		route = append(route, chain...)
	}
	return route, nil
}

// writtenHop makes a host of [user@]address[:port]; what it leaves open is
// taken from [ssh], but never a jump of its own: the list is complete.
func (f *Fleet) writtenHop(word string, seen []string) (Host, error) {
	w, err := parseHop(word)
	if err != nil {
		return Host{}, fmt.Errorf("host %s: %w", seen[0], err)
	}
	h := f.inv.hopDefaults
	h.ID, h.Address, h.Jump = word, w.address, ""
	h.said.jump = !f.inv.SSH.UseConfig
	if w.user != "" {
		h.User, h.said.user = w.user, true
	}
	if w.port != 0 {
		h.Port, h.said.port = w.port, true
	}
	return h, nil
}
