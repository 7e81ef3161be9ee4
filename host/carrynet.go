package host

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Members of an endpoint that the engine makes by itself; all others are
// settings. A MAC address of an endpoint may be either: it is carried only from
// Config.MacAddress, where an engine shows only one that was asked for.
var generatedEndpoint = []string{"NetworkID", "EndpointID", "Gateway", "IPAddress", "IPPrefixLen", "IPv6Gateway",
	"GlobalIPv6Address", "GlobalIPv6PrefixLen", "MacAddress", "DNSNames"}

type networkPlan struct {
	first object // EndpointsConfig of the creation: at most one network, as engines before API 1.44 take no more
	rest  []NetworkAttach
}

// fixedNetwork says that a mode has no endpoints to configure.
func fixedNetwork(mode string) bool {
	return mode == "host" || mode == "none" || strings.HasPrefix(mode, "container:")
}

func defaultNetwork(mode string) bool {
	return mode == "" || mode == "default" || mode == "bridge"
}

// networks plans the endpoints: the one of the network mode at creation, the
// others afterwards, the higher gateway priority first and then by name.
func (c *carrier) networks() (networkPlan, error) {
	plan := networkPlan{first: object{}}
	mac := str(c.oldCfg, "MacAddress")
	if c.opts.MACInEndpoint {
		delete(c.cfg, "MacAddress")
	}
	nets := sub(c.old, "NetworkSettings", "Networks")
	if fixedNetwork(c.mode) {
		return plan, nil
	}
	primary := c.primary(nets)
	names := keys(nets)
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(number(sub(nets, b), "GwPriority"), number(sub(nets, a), "GwPriority"))
	})
	for _, name := range names {
		ep := settings(sub(nets, name), str(c.old, "Id"))
		if defaultNetwork(c.mode) && name == "bridge" || defaultNetwork(name) {
			delete(ep, "Aliases") // an engine refuses aliases on its default network
		}
		if name == primary {
			if mac != "" && c.opts.MACInEndpoint {
				ep["MacAddress"] = mac
			}
			key := c.mode
			if defaultNetwork(c.mode) {
				key = firstOf(c.mode, "default")
			}
			if len(ep) > 0 || !defaultNetwork(c.mode) {
				plan.first[key] = ep
			}
		} else {
			c.strippedMAC(name, sub(nets, name))
			raw, err := encode(ep)
			if err != nil {
				return plan, err
			}
			plan.rest = append(plan.rest, NetworkAttach{Name: name, Endpoint: raw})
		}
		c.carried("Networks", name, "")
	}
	return plan, nil
}

// strippedMAC names the MAC address of a further network. An engine that takes
// one per endpoint shows one that was asked for like one it made; only the form
// 02:42 and the four bytes of the endpoint's address is known to be its own.
func (c *carrier) strippedMAC(network string, ep object) {
	mac := strings.ToLower(str(ep, "MacAddress"))
	if mac == "" || !c.opts.MACInEndpoint {
		return
	}
	if ip := net.ParseIP(str(ep, "IPAddress")).To4(); ip != nil && mac == fmt.Sprintf("02:42:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3]) {
		return
	}
	c.report.Ambiguous = append(c.report.Ambiguous, Item{"MacAddress", network, "not carried on a further network: whether it was asked for or made by the engine cannot be told"})
}

// primary is the network of the network mode, which may be an id.
func (c *carrier) primary(nets object) string {
	if defaultNetwork(c.mode) {
		return "bridge"
	}
	if _, ok := nets[c.mode]; ok {
		return c.mode
	}
	for _, name := range keys(nets) {
		if id := str(sub(nets, name), "NetworkID"); id != "" && strings.HasPrefix(id, c.mode) {
			return name
		}
	}
	return c.mode
}

// settings is an endpoint without what the engine generated: addresses, ids and
// the alias made of the container's own short id.
func settings(ep object, containerID string) object {
	out := object{}
	for k, v := range ep {
		if slices.Contains(generatedEndpoint, k) || empty(v) {
			continue
		}
		out[k] = clone(v)
	}
	if aliases := texts(out, "Aliases"); len(aliases) > 0 {
		var keep []string
		for _, a := range aliases {
			if !(len(a) >= 12 && strings.HasPrefix(containerID, a)) && !slices.Contains(keep, a) {
				keep = append(keep, a)
			}
		}
		delete(out, "Aliases")
		if len(keep) > 0 {
			out["Aliases"] = anyList(keep)
		}
	}
	if n, ok := out["GwPriority"]; ok && zero(n) {
		delete(out, "GwPriority")
	}
	return out
}
