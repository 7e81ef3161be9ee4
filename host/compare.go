package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"slices"
	"strings"
)

// Members of an inspect that an engine makes for each container. What is not
// listed here is compared, members this program has never heard of included.
var generatedTop = []string{"Id", "Created", "Path", "Args", "State", "Image", "ResolvConfPath", "HostnamePath", "HostsPath",
	"LogPath", "Name", "RestartCount", "ExecIDs", "GraphDriver", "Storage", "SizeRw", "SizeRootFs", "AppArmorProfile",
	"MountLabel", "ProcessLabel", "ImageManifestDescriptor"}

// Compare finds what differs between an old container and its successor beyond
// what report explains. It works on raw JSON and names paths only. Where a
// difference is explained, the successor must have exactly the expected value.
func Compare(old, created json.RawMessage, report CarryReport) []Difference {
	o, err1 := decodeObject(old, "the old container")
	n, err2 := decodeObject(created, "the successor")
	if err1 != nil || err2 != nil {
		return []Difference{{Path: "", Kind: DiffMissing}}
	}
	a, b := flatten(o), flatten(n)
	var out []Difference
	for _, p := range keys(a, b) {
		va, vb := a[p], b[p]
		if explained(p, va, vb, n, report.allow) {
			continue
		}
		out = append(out, difference(p, va, vb))
	}
	return out
}

func difference(p string, a, b any) Difference {
	switch {
	case empty(b):
		return Difference{p, DiffMissing}
	case empty(a):
		return Difference{p, DiffAdded}
	}
	return Difference{p, DiffChanged}
}

func explained(p string, old, created any, successor object, allow allowance) bool {
	if want, listed := allow.want[p]; listed {
		return same(created, want) // listed: the expected value decides, even if the old one is equal
	}
	switch {
	case p == "Config.Image":
		return created == allow.image
	case p == "Config.Hostname" && allow.hostname == "id":
		id := str(successor, "Id")
		mode := str(sub(successor, "HostConfig"), "NetworkMode")
		return fixedNetwork(mode) || empty(created) || len(id) >= 12 && created == id[:12]
	case strings.HasPrefix(p, "Mounts."):
		dst, member := splitMount(p)
		return same(old, created) || allow.newMount[dst] && empty(old) || allow.volumes[dst] && (member == "Mode" || member == "Propagation")
	}
	return same(old, created)
}

// splitMount takes apart Mounts.<destination>:<member>.
func splitMount(p string) (dst, member string) {
	p = strings.TrimPrefix(p, "Mounts.")
	i := strings.LastIndexByte(p, ':')
	return p[:i], p[i+1:]
}

// flatten turns an inspect into paths and leaves. Arrays are leaves, except the
// variables (by name), the mounts (by destination) and aliases (as a set).
func flatten(inspect object) map[string]any {
	out := map[string]any{}
	for k, v := range inspect {
		switch {
		case slices.Contains(generatedTop, k), k == "NetworkSettings", k == "Mounts", k == "Config":
		default:
			leaves(out, k, v)
		}
	}
	if links := texts(sub(inspect, "HostConfig"), "Links"); len(links) > 0 {
		out["HostConfig.Links"] = anyList(plainLinks(links))
	}
	flattenConfig(out, sub(inspect, "Config"))
	for _, v := range list(inspect, "Mounts") {
		m, _ := v.(object)
		for k, e := range m {
			if !empty(e) {
				out["Mounts."+path.Clean(str(m, "Destination"))+":"+k] = e
			}
		}
	}
	nets := sub(inspect, "NetworkSettings", "Networks")
	for name := range nets {
		out["Networks."+name] = true
		for k, e := range settings(sub(nets, name), str(inspect, "Id")) {
			if k == "Aliases" {
				for _, a := range texts(object{k: e}, k) {
					out["Networks."+name+".Aliases."+a] = true
				}
				continue
			}
			leaves(out, "Networks."+name+"."+k, e)
		}
	}
	return out
}

// plainLinks drops the container's own name, which an engine writes into its
// answer: "/db:/web/alias" was asked for as "db:alias".
func plainLinks(links []string) []string {
	out := make([]string, len(links))
	for i, l := range links {
		to, alias, _ := strings.Cut(l, ":")
		out[i] = strings.TrimPrefix(to, "/") + ":" + path.Base(alias)
	}
	return out
}

func flattenConfig(out map[string]any, cfg object) {
	for k, v := range cfg {
		switch k {
		case "Env":
			for n, e := range envMap(texts(cfg, "Env")) {
				out["Config.Env."+n] = e.String()
			}
		case "ExposedPorts", "Volumes", "Labels":
			for n, e := range sub(cfg, k) {
				out["Config."+k+"."+n] = present(e)
			}
		case "Healthcheck":
			for n, e := range sub(cfg, k) {
				if !zero(e) {
					out["Config.Healthcheck."+n] = e
				}
			}
		default:
			leaves(out, "Config."+k, v)
		}
	}
}

func leaves(out map[string]any, p string, v any) {
	o, ok := v.(object)
	if !ok {
		if !empty(v) {
			out[p] = v
		}
		return
	}
	for k, e := range o {
		leaves(out, p+"."+k, e)
	}
}

func flatLeaves(p string, v any) map[string]any {
	out := map[string]any{}
	leaves(out, p, v)
	return out
}

// fingerprint is a digest of the settings of a container, without what changes by
// itself: equal ones mean that nobody has touched it in between.
func fingerprint(inspect object) string {
	flat := flatten(inspect)
	h := sha256.New()
	for _, p := range keys(flat) {
		b, err := json.Marshal([]any{p, normal(flat[p])})
		if err != nil {
			b = []byte(p)
		}
		h.Write(b)
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))
}
