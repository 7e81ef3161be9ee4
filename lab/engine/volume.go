package engine

import (
	"os"
	"path"
	"time"
)

// volumeRoot is where an engine keeps its volumes on the host.
const volumeRoot = "/var/lib/docker/volumes"

// volume is one local volume.
type volume struct {
	name    string
	created time.Time
	options any
	labels  any
}

func (v *volume) mountpoint() string { return path.Join(volumeRoot, v.name, "_data") }

func (v *volume) json() object {
	return object{"CreatedAt": v.created.Format(time.RFC3339), "Driver": "local", "Labels": v.labels,
		"Mountpoint": v.mountpoint(), "Name": v.name, "Options": v.options, "Scope": "local"}
}

// ensureVolume returns a volume, made when it is missing; an empty name makes
// an anonymous one.
func (e *Engine) ensureVolume(name string) *volume {
	anonymous := name == ""
	if anonymous {
		name = e.newID()
	}
	if v := e.volumes[name]; v != nil {
		return v
	}
	v := &volume{name: name, created: time.Now().UTC()}
	if anonymous && e.atLeast("1.42") {
		v.labels = object{"com.docker.volume.anonymous": ""}
	}
	e.volumes[name] = v
	e.ensureDir(v.mountpoint()) // a failure shows when the process starts
	e.emit("volume", "create", name, object{"driver": "local"})
	return v
}

// createVolume answers POST /volumes/create.
func (e *Engine) createVolume(body object) (*volume, error) {
	if d := str(body, "Driver"); d != "" && d != "local" {
		return nil, refused(404, "error looking up volume plugin %s: plugin \"%s\" not found", d, d)
	}
	_, existed := e.volumes[str(body, "Name")]
	v := e.ensureVolume(str(body, "Name"))
	if !existed {
		if l := sub(body, "Labels"); l != nil {
			v.labels = l
		}
		if o := sub(body, "DriverOpts"); o != nil {
			v.options = o
		}
	}
	return v, nil
}

// volumeUsers names the containers that mount a volume.
func (e *Engine) volumeUsers(name string) []string {
	var users []string
	for _, c := range e.containers {
		for _, m := range c.mounts {
			if m.kind == "volume" && m.name == name {
				users = append(users, c.id)
			}
		}
	}
	return users
}

func (e *Engine) removeVolume(name string) error {
	if e.volumes[name] == nil {
		return refused(404, "get %s: no such volume", name)
	}
	if users := e.volumeUsers(name); len(users) > 0 {
		return refused(409, "remove %s: volume is in use - %v", name, users)
	}
	e.removeVolumeDir(name)
	return nil
}

func (e *Engine) removeVolumeDir(name string) {
	v := e.volumes[name]
	if v == nil {
		return
	}
	delete(e.volumes, name)
	os.RemoveAll(e.path(path.Join(volumeRoot, name)))
	e.emit("volume", "destroy", name, object{"driver": "local"})
}

func (e *Engine) listVolumes(f filters) (object, error) {
	if err := f.known("name", "label", "driver", "dangling"); err != nil {
		return nil, err
	}
	out := []object{}
	for _, name := range sortedKeys(e.volumes) {
		v := e.volumes[name]
		labels, _ := v.labels.(object)
		if f.contains("name", name) && f.labels(labels) && f.flag("dangling", len(e.volumeUsers(name)) == 0) {
			out = append(out, v.json())
		}
	}
	return object{"Volumes": out, "Warnings": nil}, nil
}
