package engine

import (
	"fmt"
	"net/http"
	"sort"
	"strings"
	"time"

	"github.com/distribution/reference"
)

// localImage is an image the engine holds.
type localImage struct {
	id      string
	image   Image
	tags    []string // as people write them: registry.lab.example:5000/qnet:v1
	digests []string // repo@sha256:…
	tagged  time.Time
}

// withTag adds the tag the engine assumes.
func withTag(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.FamiliarString(reference.TagNameOnly(named))
}

// findImage finds by tag, digest, id or the start of an id.
func (e *Engine) findImage(ref string) *localImage {
	if img := e.images[ref]; img != nil {
		return img
	}
	if named, err := reference.ParseNormalizedNamed(ref); err == nil {
		want := reference.FamiliarString(reference.TagNameOnly(named))
		if digested, ok := named.(reference.Canonical); ok { // the digest wins over a tag
			want = reference.FamiliarName(named) + "@" + digested.Digest().String()
		}
		for _, img := range e.images {
			for _, have := range append(append([]string(nil), img.tags...), img.digests...) {
				if have == want {
					return img
				}
			}
		}
	}
	short := strings.TrimPrefix(ref, "sha256:")
	for id, img := range e.images {
		if len(short) >= 4 && strings.HasPrefix(strings.TrimPrefix(id, "sha256:"), short) {
			return img
		}
	}
	return nil
}

// store takes an image in; the caller holds the lock.
func (e *Engine) store(p pulled) *localImage {
	id := p.image.id()
	img := e.images[id]
	if img == nil {
		img = &localImage{id: id, image: p.image}
		e.images[id] = img
	}
	named, err := reference.WithName(p.repo)
	if err != nil {
		return img
	}
	name := reference.FamiliarName(named)
	img.digests = addString(img.digests, name+"@"+p.digest)
	if p.tag != "" {
		tag := name + ":" + p.tag
		for _, o := range e.images { // a tag names one image
			o.tags = dropString(o.tags, tag)
		}
		img.tags = append(img.tags, tag)
	}
	img.tagged = time.Now().UTC()
	return img
}

func addString(list []string, s string) []string { return append(dropString(list, s), s) }

func dropString(list []string, s string) []string {
	var out []string
	for _, x := range list {
		if x != s {
			out = append(out, x)
		}
	}
	return out
}

// Load pulls an image without the network's delay, for setting a lab up.
func (e *Engine) Load(ref string) error {
	p, err := e.cfg.Registry.resolve(ref, e.cfg.Registry.login)
	if err != nil {
		return fmt.Errorf("loading image %s: %w", ref, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.store(p)
	return nil
}

// pull answers POST /images/create. What goes wrong before the first progress
// line is an HTTP error; what goes wrong later stands inside the 200 stream.
func (e *Engine) pull(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if q.Get("fromSrc") != "" {
		return errUnknown
	}
	ref := q.Get("fromImage")
	switch tag := q.Get("tag"); {
	case strings.Contains(tag, ":"):
		ref += "@" + tag
	case tag != "":
		ref += ":" + tag
	}
	p, err := e.cfg.Registry.resolve(ref, r.Header.Get("X-Registry-Auth"))
	if err != nil {
		return err
	}
	out := newStream(w)
	shown := p.tag
	if shown == "" {
		shown = p.digest
	}
	named, _ := reference.WithName(p.repo)
	out.send(object{"status": "Pulling from " + reference.Path(named), "id": shown})
	e.mu.Lock()
	have := e.images[p.image.id()] != nil
	e.mu.Unlock()
	if !have {
		if msg := e.fetchLayers(r, out, p); msg != "" {
			out.send(object{"errorDetail": object{"message": msg}, "error": msg})
			return nil
		}
	}
	e.mu.Lock()
	img := e.store(p)
	e.emit("image", "pull", img.id, object{"name": ref})
	e.mu.Unlock()
	out.send(object{"status": "Digest: " + p.digest})
	status := "Downloaded newer image for "
	if have {
		status = "Image is up to date for "
	}
	out.send(object{"status": "Status: " + status + ref})
	return nil
}

// layers is how many layers every lab image has.
const layers = 3

// fetchLayers plays the download; a message is the failure.
func (e *Engine) fetchLayers(r *http.Request, out *jsonStream, p pulled) string {
	size := max(p.image.Size, layers)
	step := e.cfg.PullTime / (layers * 2)
	for l := range layers {
		id := strings.TrimPrefix(p.image.id(), "sha256:")[l*12 : l*12+12]
		out.send(object{"status": "Pulling fs layer", "progressDetail": object{}, "id": id})
		for half := int64(1); half <= 2; half++ {
			if pause(r.Context(), step) != nil {
				return "context canceled"
			}
			if text, ok := e.Fault(FaultPullFail); ok {
				return orDefault(text, "received unexpected HTTP status: 503 Service Unavailable")
			}
			if e.noSpace(size) {
				return fmt.Sprintf("write /var/lib/docker/tmp/GetImageBlob%s: no space left on device", id[:6])
			}
			total := size / layers
			out.send(object{"status": "Downloading", "progressDetail": object{"current": total * half / 2, "total": total}, "id": id})
		}
		out.send(object{"status": "Pull complete", "progressDetail": object{}, "id": id})
	}
	return ""
}

// noSpace says whether an image does not fit the host's disk.
func (e *Engine) noSpace(size int64) bool {
	if _, full := e.Fault(FaultDiskFull); full {
		return true
	}
	return e.cfg.FreeBytes != nil && e.cfg.FreeBytes() < uint64(size)
}

// distribution answers GET /distribution/{name}/json.
func (e *Engine) distribution(ref, auth string) (object, error) {
	p, err := e.cfg.Registry.resolve(ref, auth)
	if err != nil {
		return nil, err
	}
	os, arch := p.image.platform()
	return object{"Descriptor": object{"mediaType": "application/vnd.docker.distribution.manifest.v2+json", "digest": p.digest, "size": 1994},
		"Platforms": []object{{"architecture": arch, "os": os}}}, nil
}

// imageJSON is image inspect.
func (e *Engine) imageJSON(img *localImage) object {
	os, arch := img.image.platform()
	diff := img.id[7:39]
	o := object{"Id": img.id, "RepoTags": emptyList(img.tags), "RepoDigests": emptyList(img.digests), "Parent": "",
		"Comment": "", "Created": img.image.Created.UTC().Format(time.RFC3339Nano), "DockerVersion": "20.10.24", "Author": "",
		"Config": img.image.configJSON(), "Architecture": arch, "Os": os, "Size": img.image.Size,
		"GraphDriver": object{"Data": object{"MergedDir": "/var/lib/docker/overlay2/" + diff + "/merged",
			"UpperDir": "/var/lib/docker/overlay2/" + diff + "/diff", "WorkDir": "/var/lib/docker/overlay2/" + diff + "/work"}, "Name": "overlay2"},
		"RootFS":   object{"Type": "layers", "Layers": []string{"sha256:" + img.id[7:]}},
		"Metadata": object{"LastTagTime": img.tagged.Format(time.RFC3339Nano)}}
	if !e.atLeast("1.44") {
		o["VirtualSize"], o["Container"], o["ContainerConfig"] = img.image.Size, "", clone(configDefaults())
	}
	return o
}

func emptyList(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func (e *Engine) listImages(f filters) ([]object, error) {
	if err := f.known("reference", "dangling", "label", "before", "since"); err != nil {
		return nil, err
	}
	out := []object{}
	for _, id := range sortedKeys(e.images) {
		img := e.images[id]
		labels, _ := labelsJSON(img.image.Labels).(object)
		if !f.labels(labels) || !f.flag("dangling", len(img.tags) == 0) || !img.matches(f) {
			continue
		}
		o := object{"Containers": -1, "Created": img.image.Created.Unix(), "Id": img.id, "Labels": labelsJSON(img.image.Labels),
			"ParentId": "", "RepoDigests": emptyList(img.digests), "RepoTags": emptyList(img.tags), "SharedSize": -1, "Size": img.image.Size}
		if !e.atLeast("1.44") {
			o["VirtualSize"] = img.image.Size
		}
		out = append(out, o)
	}
	return out, nil
}

func (img *localImage) matches(f filters) bool {
	return f.any("reference", func(w string) bool {
		for _, t := range append(append([]string(nil), img.tags...), img.digests...) {
			name, _, _ := strings.Cut(t, "@")
			if t == w || t == withTag(w) || name == w || strings.TrimSuffix(name, ":"+tagOf(name)) == w {
				return true
			}
		}
		return false
	})
}

func tagOf(ref string) string { return ref[strings.LastIndex(ref, ":")+1:] }

// removeImage untags or deletes.
func (e *Engine) removeImage(ref string, force bool) ([]object, error) {
	img := e.findImage(ref)
	if img == nil {
		return nil, refused(404, "No such image: %s", withTag(ref))
	}
	if c := e.userOf(img); c != nil && !force && len(img.tags) <= 1 {
		if strings.HasPrefix(img.id, ref) || strings.HasPrefix(img.id, "sha256:"+ref) {
			return nil, refused(409, "conflict: unable to delete %s (cannot be forced) - image is being used by container %s", img.id[7:19], c.id[:12])
		}
		return nil, refused(409, "conflict: unable to remove repository reference \"%s\" (must force) - container %s is using its referenced image %s", ref, c.id[:12], img.id[7:19])
	}
	out := []object{}
	want := withTag(ref)
	for _, t := range append(append([]string(nil), img.tags...), img.digests...) {
		if t == want || len(img.tags) <= 1 {
			img.tags, img.digests = dropString(img.tags, t), dropString(img.digests, t)
			out = append(out, object{"Untagged": t})
			e.emit("image", "untag", img.id, object{"name": t})
		}
	}
	if len(img.tags) == 0 && e.userOf(img) == nil {
		delete(e.images, img.id)
		out = append(out, object{"Deleted": img.id})
		e.emit("image", "delete", img.id, object{"name": img.id})
	}
	return out, nil
}

func (e *Engine) userOf(img *localImage) *container {
	var users []*container
	for _, c := range e.containers {
		if c.image == img {
			users = append(users, c)
		}
	}
	sort.Slice(users, func(i, j int) bool { return users[i].seq < users[j].seq })
	if len(users) == 0 {
		return nil
	}
	return users[0]
}
