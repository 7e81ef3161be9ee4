package engine

import (
	"fmt"
	"net/netip"
	"sort"
	"strconv"
	"strings"
	"time"
)

// firstEphemeral is where ports without a wished number are taken from.
const firstEphemeral = 49153

// network is one network of the host.
type network struct {
	id, name, driver string
	created          time.Time
	prefix           netip.Prefix // zero for host and none
	gateway          netip.Addr
	userSubnet       bool // static addresses are allowed only here
	ipam             []object
	options, labels  object
	internal         bool
	attachable       bool
}

func (n *network) predefined() bool {
	return n.name == "bridge" || n.name == "host" || n.name == "none"
}

// endpoint is a container's place on a network.
type endpoint struct {
	ipam       any // IPAMConfig as given, or null
	links      any
	driverOpts any
	aliases    []string // the user's
	userMAC    string   // asked for; a generated one is only in mac
	shortAlias bool     // the engine has added the short id
	networkID  string
	endpointID string
	gateway    string
	ip, mac    string
	bits       int
}

// newEndpoint reads the settings a client gave; nil gives the defaults.
func newEndpoint(o object) *endpoint {
	ep := &endpoint{ipam: o["IPAMConfig"], links: o["Links"], driverOpts: o["DriverOpts"], userMAC: str(o, "MacAddress")}
	if a, ok := o["Aliases"]; ok && a != nil {
		ep.aliases = list(o, "Aliases")
	}
	return ep
}

func (ep *endpoint) staticIP() string {
	o, _ := ep.ipam.(object)
	return str(o, "IPv4Address")
}

func (c *container) addEndpoint(name string, ep *endpoint) {
	if c.endpoints == nil {
		c.endpoints = map[string]*endpoint{}
	}
	if c.endpoints[name] == nil {
		c.order = append(c.order, name)
	}
	c.endpoints[name] = ep
}

// defaultNetworks are the three every engine has.
func (e *Engine) defaultNetworks() map[string]*network {
	mk := func(name, driver string) *network {
		return &network{id: e.newID(), name: name, driver: driver, created: e.created.UTC(), options: object{}, labels: object{}}
	}
	bridge := mk("bridge", "bridge")
	bridge.prefix = netip.MustParsePrefix("172.17.0.0/16")
	bridge.gateway = bridge.prefix.Addr().Next()
	bridge.ipam = []object{{"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.1"}}
	bridge.options = object{"com.docker.network.bridge.default_bridge": "true", "com.docker.network.bridge.enable_icc": "true",
		"com.docker.network.bridge.enable_ip_masquerade": "true", "com.docker.network.bridge.host_binding_ipv4": "0.0.0.0",
		"com.docker.network.bridge.name": "docker0", "com.docker.network.driver.mtu": "1500"}
	return map[string]*network{"bridge": bridge, "host": mk("host", "host"), "none": mk("none", "null")}
}

// findNetwork finds by name, id or the start of an id.
func (e *Engine) findNetwork(ref string) *network {
	if ref == "default" {
		ref = "bridge"
	}
	if n := e.networks[ref]; n != nil {
		return n
	}
	for _, n := range e.networks {
		if len(ref) >= 3 && strings.HasPrefix(n.id, ref) {
			return n
		}
	}
	return nil
}

// createNetwork makes a user-defined network.
func (e *Engine) createNetwork(body object) (*network, error) {
	name := str(body, "Name")
	if name == "" {
		return nil, refused(400, "network name cannot be empty")
	}
	if e.networks[name] != nil {
		return nil, refused(409, "network with name %s already exists", name)
	}
	n := &network{id: e.newID(), name: name, driver: orDefault(str(body, "Driver"), "bridge"), created: time.Now().UTC(),
		options: orEmpty(sub(body, "Options")), labels: orEmpty(sub(body, "Labels")),
		internal: body["Internal"] == true, attachable: body["Attachable"] == true}
	if n.driver != "bridge" {
		return nil, refused(501, "network driver %s is not emulated by the lab engine", n.driver)
	}
	configs, _ := sub(body, "IPAM")["Config"].([]any)
	for _, v := range configs {
		cfg, _ := v.(object)
		if err := n.subnet(cfg); err != nil {
			return nil, err
		}
	}
	if !n.prefix.IsValid() {
		n.prefix = e.freeSubnet()
		n.gateway = n.prefix.Addr().Next()
		n.ipam = []object{{"Subnet": n.prefix.String(), "Gateway": n.gateway.String()}}
	}
	e.networks[name] = n
	e.emit("network", "create", n.id, object{"name": n.name, "type": n.driver})
	return n, nil
}

func orEmpty(o object) object {
	if o == nil {
		return object{}
	}
	return o
}

func (n *network) subnet(cfg object) error {
	p, err := netip.ParsePrefix(str(cfg, "Subnet"))
	if err != nil {
		return refused(400, "invalid subnet %s: %v", str(cfg, "Subnet"), err)
	}
	n.prefix, n.userSubnet = p.Masked(), true
	n.gateway = n.prefix.Addr().Next()
	if g := str(cfg, "Gateway"); g != "" {
		if n.gateway, err = netip.ParseAddr(g); err != nil {
			return refused(400, "invalid gateway %s", g)
		}
	}
	n.ipam = append(n.ipam, cfg)
	return nil
}

// freeSubnet is the next of Docker's default pools.
func (e *Engine) freeSubnet() netip.Prefix {
	for i := 18; i < 32; i++ {
		p := netip.MustParsePrefix(fmt.Sprintf("172.%d.0.0/16", i))
		free := true
		for _, n := range e.networks {
			free = free && !n.prefix.Overlaps(p)
		}
		if free {
			return p
		}
	}
	return netip.MustParsePrefix("192.168.0.0/20")
}

// connect adds a container to a network.
func (e *Engine) connect(n *network, c *container, settings object) error {
	ep := newEndpoint(settings)
	if err := checkEndpoint(n, ep); err != nil {
		return err
	}
	if str(c.hostConfig, "NetworkMode") == "host" || n.name == "host" {
		return refused(400, "container cannot be connected to host network while already connected to another network, or the other way round")
	}
	if c.run == nil {
		ep.shortAlias = !n.predefined()
		c.addEndpoint(n.name, ep)
		return nil
	}
	if c.endpoints[n.name] != nil {
		return refused(403, "endpoint with name %s already exists in network %s", c.name, n.name)
	}
	if err := e.join(n, c, ep); err != nil {
		return err
	}
	c.addEndpoint(n.name, ep)
	return nil
}

// disconnect takes a container off a network.
func (e *Engine) disconnect(n *network, c *container, force bool) error {
	if c.endpoints[n.name] == nil {
		if force {
			return nil
		}
		return refused(403, "container %s is not connected to network %s", c.id, n.name)
	}
	delete(c.endpoints, n.name)
	for i, name := range c.order {
		if name == n.name {
			c.order = append(c.order[:i], c.order[i+1:]...)
			break
		}
	}
	e.emit("network", "disconnect", n.id, object{"container": c.id, "name": n.name, "type": n.driver})
	return nil
}

// checkEndpoint refuses what only user-defined networks can do.
func checkEndpoint(n *network, ep *endpoint) error {
	switch {
	case n.predefined() && len(ep.aliases) > 0:
		return refused(400, "network-scoped alias is supported only for containers in user defined networks")
	case n.predefined() && ep.staticIP() != "":
		return refused(400, "user specified IP address is supported on user defined networks only")
	case ep.staticIP() != "" && !n.userSubnet:
		return refused(400, "user specified IP address is supported only when connecting to networks with user configured subnets")
	}
	return nil
}

// attachNetwork joins all networks of a container that starts.
func (e *Engine) attachNetwork(c *container) error {
	for _, name := range c.order {
		n := e.findNetwork(name)
		if n == nil {
			return refused(404, "network %s not found", name)
		}
		if err := checkEndpoint(n, c.endpoints[name]); err != nil {
			return err
		}
		if err := e.join(n, c, c.endpoints[name]); err != nil {
			return err
		}
	}
	if target, ok := strings.CutPrefix(str(c.hostConfig, "NetworkMode"), "container:"); ok {
		if o := e.find(target); o == nil || o.run == nil {
			return refused(409, "cannot join network of a non running container: %s", target)
		}
	}
	c.sandbox = e.newID()
	return nil
}

// join gives an endpoint its addresses.
func (e *Engine) join(n *network, c *container, ep *endpoint) error {
	ep.networkID, ep.endpointID = n.id, e.newID()
	ep.shortAlias = !n.predefined()
	if n.prefix.IsValid() {
		addr, err := e.allocate(n, ep)
		if err != nil {
			return err
		}
		ep.ip, ep.bits, ep.gateway = addr.String(), n.prefix.Bits(), n.gateway.String()
		ep.mac = e.macFor(addr, ep)
	}
	e.emit("network", "connect", n.id, object{"container": c.id, "name": n.name, "type": n.driver})
	return nil
}

// allocate takes the wished address, or the lowest free one.
func (e *Engine) allocate(n *network, ep *endpoint) (netip.Addr, error) {
	taken := map[string]bool{n.gateway.String(): true}
	for _, c := range e.containers {
		if o := c.endpoints[n.name]; o != nil && o != ep && o.ip != "" {
			taken[o.ip] = true
		}
	}
	if want := ep.staticIP(); want != "" {
		addr, err := netip.ParseAddr(want)
		if err != nil || !n.prefix.Contains(addr) {
			return addr, refused(400, "invalid address %s: It does not belong to any of this network's subnets", want)
		}
		if taken[want] {
			return addr, refused(403, "Address already in use")
		}
		return addr, nil
	}
	for addr := n.prefix.Addr().Next(); n.prefix.Contains(addr); addr = addr.Next() {
		if !taken[addr.String()] {
			return addr, nil
		}
	}
	return netip.Addr{}, refused(500, "no available IPv4 addresses on this network's address pools: %s (%s)", n.name, n.id)
}

// macFor is the wished MAC, or one made from the address as Docker does.
func (e *Engine) macFor(addr netip.Addr, ep *endpoint) string {
	if ep.userMAC != "" {
		return ep.userMAC
	}
	b := addr.As4()
	return fmt.Sprintf("02:42:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// releaseNetwork gives addresses and ports back when a container has ended.
func (e *Engine) releaseNetwork(c *container) {
	c.ports = nil
	for _, name := range c.order {
		ep := c.endpoints[name]
		if ep.endpointID != "" && e.networks[name] != nil {
			n := e.networks[name]
			e.emit("network", "disconnect", n.id, object{"container": c.id, "name": n.name, "type": n.driver})
		}
		ep.endpointID, ep.gateway, ep.ip, ep.mac, ep.bits = "", "", "", "", 0
	}
}

// publish binds host ports, or fails as the kernel would.
func (e *Engine) publish(c *container) error {
	mode := str(c.hostConfig, "NetworkMode")
	if mode == "host" || mode == "none" || strings.HasPrefix(mode, "container:") {
		return nil
	}
	wanted, err := c.bindings()
	if err != nil {
		return err
	}
	if c.hostConfig["PublishAllPorts"] == true {
		wanted = append(wanted, c.unboundPorts(wanted)...)
	}
	for _, p := range wanted {
		if p.HostPort == 0 {
			p.HostPort = e.ephemeralPort(p.Proto)
		}
		if e.portTaken(p) {
			return refused(500, "driver failed programming external connectivity on endpoint %s (%s): Bind for %s failed: port is already allocated", c.name, e.newID(), p)
		}
		c.ports = append(c.ports, p)
	}
	return nil
}

func (c *container) unboundPorts(bound []Port) []Port {
	var out []Port
	for _, key := range sortedKeys(sub(c.config, "ExposedPorts")) {
		num, proto, _ := strings.Cut(key, "/")
		n, _ := strconv.Atoi(num)
		has := false
		for _, b := range bound {
			has = has || b.ContainerPort == n && b.Proto == orDefault(proto, "tcp")
		}
		if !has {
			out = append(out, Port{Proto: orDefault(proto, "tcp"), ContainerPort: n})
		}
	}
	return out
}

func (e *Engine) portTaken(p Port) bool {
	for _, c := range e.containers {
		for _, o := range c.ports {
			if o.Proto == p.Proto && o.HostPort == p.HostPort && (anyIP(o.HostIP) || anyIP(p.HostIP) || o.HostIP == p.HostIP) {
				return true
			}
		}
	}
	return false
}

func anyIP(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }

func (e *Engine) ephemeralPort(proto string) int {
	for n := firstEphemeral; ; n++ {
		if !e.portTaken(Port{Proto: proto, HostPort: n}) {
			return n
		}
	}
}

// removeNetwork removes a user-defined network nobody uses.
func (e *Engine) removeNetwork(n *network) error {
	if n.predefined() {
		return refused(403, "%s is a pre-defined network and cannot be removed", n.name)
	}
	for _, c := range e.containers {
		if ep := c.endpoints[n.name]; ep != nil && ep.endpointID != "" {
			return refused(403, "error while removing network: network %s id %s has active endpoints", n.name, n.id)
		}
	}
	delete(e.networks, n.name)
	e.emit("network", "destroy", n.id, object{"name": n.name, "type": n.driver})
	return nil
}

// networkJSON is a network as the API shows it; members only in inspect.
func (e *Engine) networkJSON(n *network, members bool) object {
	containers := object{}
	if members {
		for _, c := range e.containers {
			if ep := c.endpoints[n.name]; ep != nil && ep.endpointID != "" {
				v4 := ""
				if ep.ip != "" {
					v4 = ep.ip + "/" + strconv.Itoa(ep.bits)
				}
				containers[c.id] = object{"Name": c.name, "EndpointID": ep.endpointID, "MacAddress": ep.mac, "IPv4Address": v4, "IPv6Address": ""}
			}
		}
	}
	ipam := n.ipam
	if ipam == nil {
		ipam = []object{}
	}
	var options any
	if !n.predefined() {
		options = object{}
	}
	return object{"Name": n.name, "Id": n.id, "Created": n.created.Format(time.RFC3339Nano), "Scope": "local",
		"Driver": n.driver, "EnableIPv6": false, "IPAM": object{"Driver": "default", "Options": options, "Config": ipam},
		"Internal": n.internal, "Attachable": n.attachable, "Ingress": false, "ConfigFrom": object{"Network": ""},
		"ConfigOnly": false, "Containers": containers, "Options": n.options, "Labels": n.labels}
}

func (e *Engine) listNetworks(f filters) ([]object, error) {
	if err := f.known("name", "id", "driver", "type", "label", "scope", "dangling"); err != nil {
		return nil, err
	}
	out := []object{}
	for _, name := range sortedKeys(e.networks) {
		n := e.networks[name]
		kind := "custom"
		if n.predefined() {
			kind = "builtin"
		}
		if f.contains("name", n.name) && f.prefix("id", n.id) && f.exact("driver", n.driver) && f.exact("type", kind) && f.labels(n.labels) {
			out = append(out, e.networkJSON(n, false))
		}
	}
	return out, nil
}

// endpointJSON is an endpoint as inspect shows it under an API version.
func (c *container) endpointJSON(name string, version string, full bool) object {
	ep := c.endpoints[name]
	o := object{"IPAMConfig": ep.ipam, "Links": ep.links, "Aliases": nil, "NetworkID": ep.networkID,
		"EndpointID": ep.endpointID, "Gateway": ep.gateway, "IPAddress": ep.ip, "IPPrefixLen": ep.bits,
		"IPv6Gateway": "", "GlobalIPv6Address": "", "GlobalIPv6PrefixLen": 0, "MacAddress": ep.mac, "DriverOpts": ep.driverOpts}
	aliases := ep.aliases
	switch {
	case !versionLess(version, "1.45"):
		var dns any
		if ep.shortAlias {
			dns = append(append([]string{c.name}, aliases...), c.id[:12])
		}
		o["DNSNames"] = dns
	case ep.shortAlias: // older APIs mix the short id into the user's aliases
		aliases = append(append([]string(nil), aliases...), c.id[:12])
	}
	if full && aliases != nil {
		o["Aliases"] = aliases
	}
	if ep.mac == "" && ep.userMAC != "" && !versionLess(version, "1.44") {
		o["MacAddress"] = ep.userMAC
	}
	return o
}

// portsJSON is NetworkSettings.Ports: what is exposed, with what is bound.
func (c *container) portsJSON() object {
	out := object{}
	if c.run == nil || str(c.hostConfig, "NetworkMode") == "host" {
		return out
	}
	for p := range sub(c.config, "ExposedPorts") {
		out[p] = nil
	}
	for _, p := range c.ports {
		key := fmt.Sprintf("%d/%s", p.ContainerPort, p.Proto)
		bound, _ := out[key].([]object)
		for _, ip := range hostIPs(p.HostIP) {
			bound = append(bound, object{"HostIp": ip, "HostPort": strconv.Itoa(p.HostPort)})
		}
		out[key] = bound
	}
	return out
}

func hostIPs(ip string) []string {
	if ip == "" {
		return []string{"0.0.0.0", "::"}
	}
	return []string{ip}
}

// portList is Ports of the container list.
func (c *container) portList() []object {
	out := []object{}
	bound := map[string]bool{}
	for _, p := range c.ports {
		bound[fmt.Sprintf("%d/%s", p.ContainerPort, p.Proto)] = true
		for _, ip := range hostIPs(p.HostIP) {
			out = append(out, object{"IP": ip, "PrivatePort": p.ContainerPort, "PublicPort": p.HostPort, "Type": p.Proto})
		}
	}
	for _, key := range sortedKeys(sub(c.config, "ExposedPorts")) {
		num, proto, _ := strings.Cut(key, "/")
		if n, err := strconv.Atoi(num); err == nil && !bound[key] && c.run != nil {
			out = append(out, object{"PrivatePort": n, "Type": orDefault(proto, "tcp")})
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i]["PrivatePort"].(int) < out[j]["PrivatePort"].(int) })
	return out
}
