package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/distribution/reference"
)

// Image is what a registry holds: the defaults a container inherits.
type Image struct {
	Entrypoint   []string
	Cmd          []string
	Env          []string
	Labels       map[string]string
	User         string
	WorkingDir   string
	ExposedPorts []string // "8001/tcp"
	Volumes      []string
	StopSignal   string
	Healthcheck  *Healthcheck
	OS, Arch     string // linux/amd64 when empty
	Size         int64
	Created      time.Time
}

// Healthcheck is an image's health check; durations are nanoseconds in JSON.
type Healthcheck struct {
	Test        []string
	Interval    time.Duration `json:",omitempty"`
	Timeout     time.Duration `json:",omitempty"`
	StartPeriod time.Duration `json:",omitempty"`
	Retries     int           `json:",omitempty"`
}

// configJSON is Config as image inspect shows it.
func (i Image) configJSON() object {
	o := object{"Hostname": "", "Domainname": "", "User": i.User, "AttachStdin": false, "AttachStdout": false,
		"AttachStderr": false, "Tty": false, "OpenStdin": false, "StdinOnce": false, "Env": orNull(i.Env),
		"Cmd": orNull(i.Cmd), "Image": "", "Volumes": set(i.Volumes), "WorkingDir": i.WorkingDir,
		"Entrypoint": orNull(i.Entrypoint), "OnBuild": nil, "Labels": labelsJSON(i.Labels)}
	if len(i.ExposedPorts) > 0 {
		o["ExposedPorts"] = set(i.ExposedPorts)
	}
	if i.StopSignal != "" {
		o["StopSignal"] = i.StopSignal
	}
	if i.Healthcheck != nil {
		o["Healthcheck"] = toObject(i.Healthcheck)
	}
	return o
}

// id is the hash of the image's configuration, as Docker's image id is.
func (i Image) id() string {
	b, _ := json.Marshal(i) // plain data: cannot fail
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// digest is the hash of the manifest that names the configuration.
func (i Image) digest() string {
	sum := sha256.Sum256([]byte("manifest of " + i.id()))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (i Image) platform() (os, arch string) {
	os, arch = i.OS, i.Arch
	if os == "" {
		os = "linux"
	}
	if arch == "" {
		arch = "amd64"
	}
	return os, arch
}

// Registry holds images by reference and by digest. It is shared by the hosts
// of a lab.
type Registry struct {
	mu    sync.Mutex
	repos map[string]*repository // by full name, e.g. registry.lab.example:5000/qnet
	login string                 // required X-Registry-Auth when set
}

type repository struct {
	tags    map[string]string // tag -> digest
	digests map[string]Image
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{repos: map[string]*repository{}} }

// Push stores an image under a reference with a tag and returns its digest.
// Pushing another image under the same tag moves the tag; the old digest stays.
func (r *Registry) Push(ref string, img Image) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("reading reference %q: %w", ref, err)
	}
	tagged, ok := named.(reference.Tagged)
	if !ok {
		return "", fmt.Errorf("reference %q has no tag", ref)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	repo := r.repos[named.Name()]
	if repo == nil {
		repo = &repository{tags: map[string]string{}, digests: map[string]Image{}}
		r.repos[named.Name()] = repo
	}
	d := img.digest()
	repo.tags[tagged.Tag()] = d
	repo.digests[d] = img
	return d, nil
}

// RequireAuth makes every pull without this X-Registry-Auth header fail.
func (r *Registry) RequireAuth(header string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login = header
}

// pulled is what a reference resolves to.
type pulled struct {
	image  Image
	digest string
	repo   string // full name
	tag    string // empty when pulled by digest
}

// resolve finds an image; the errors read as the engine reports them.
func (r *Registry) resolve(ref, auth string) (pulled, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return pulled{}, refused(400, "invalid reference format")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	repo := r.repos[named.Name()]
	if r.login != "" && auth != r.login {
		return pulled{}, refused(500, "Head \"https://%s/v2/%s/manifests/%s\": no basic auth credentials",
			reference.Domain(named), reference.Path(named), tagOrDigest(named))
	}
	if repo == nil {
		return pulled{}, refused(404, "pull access denied for %s, repository does not exist or may require 'docker login': denied: requested access to the resource is denied", reference.FamiliarName(named))
	}
	p := pulled{repo: named.Name()}
	switch n := named.(type) {
	case reference.Digested:
		p.digest = n.Digest().String()
	case reference.Tagged:
		p.tag = n.Tag()
		p.digest = repo.tags[n.Tag()]
	}
	img, ok := repo.digests[p.digest]
	if !ok {
		return pulled{}, refused(404, "manifest for %s not found: manifest unknown: manifest unknown", reference.FamiliarString(named))
	}
	p.image = img
	return p, nil
}

func tagOrDigest(n reference.Named) string {
	switch n := n.(type) {
	case reference.Digested:
		return n.Digest().String()
	case reference.Tagged:
		return n.Tag()
	}
	return "latest"
}
