package host

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// reference is an image reference taken apart.
type reference struct {
	repo   string // with its registry where one is named
	tag    string
	digest string
}

func parseReference(ref string) (reference, error) {
	bad := errorf(CodeBadRequest, "", "image reference %q is not one", ref)
	if ref == "" || strings.ContainsAny(ref, " \t\n\r?#%\\") || strings.Contains(ref, "..") {
		return reference{}, bad
	}
	r := reference{repo: ref}
	if i := strings.IndexByte(ref, '@'); i >= 0 {
		r.repo, r.digest = ref[:i], ref[i+1:]
		if !strings.HasPrefix(r.digest, "sha256:") || !hexSHA256.MatchString(strings.TrimPrefix(r.digest, "sha256:")) {
			return reference{}, bad
		}
	}
	if i := strings.LastIndexByte(r.repo, ':'); i > strings.LastIndexByte(r.repo, '/') {
		r.repo, r.tag = r.repo[:i], r.repo[i+1:]
	}
	if r.repo == "" {
		return reference{}, bad
	}
	return r, nil
}

// localID says whether ref is an image id of this host, which no registry knows.
func localID(ref string) bool {
	return strings.HasPrefix(ref, "sha256:") && hexSHA256.MatchString(strings.TrimPrefix(ref, "sha256:"))
}

// registry is the registry of a repository, in the words of docker's login file.
func (r reference) registry() string {
	first, _, more := strings.Cut(r.repo, "/")
	if !more || !strings.ContainsAny(first, ".:") && first != "localhost" {
		return "https://index.docker.io/v1/"
	}
	return first
}

type dockerLogins struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// login makes the X-Registry-Auth header from this host's own docker login;
// nil where there is none. Credential helpers are programs of a user's session
// and are refused rather than silently ignored.
func (h *hostOps) login(registry string) (http.Header, error) {
	if h.cfg.DockerConfig == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(h.cfg.path(h.cfg.DockerConfig, "config.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the docker login of this host: %w", err)
	}
	var l dockerLogins
	if json.Unmarshal(raw, &l) != nil {
		return nil, errorf(CodeAuth, "", "docker login file of this host is not valid JSON")
	}
	return l.header(registry)
}

func (l dockerLogins) header(registry string) (http.Header, error) {
	helper := func(name string) error {
		return errorf(CodeAuth, "log in with a plain config.json on the host, or pull the image there by hand", "the login for %s is kept by the credential helper %s", registry, name)
	}
	if name := l.CredHelpers[registry]; name != "" {
		return nil, helper(name)
	}
	a, ok := l.Auths[registry]
	if !ok {
		a, ok = l.Auths["https://"+registry]
	}
	if !ok {
		return nil, nil
	}
	user, pass := a.Username, a.Password
	if a.Auth != "" {
		dec, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return nil, errorf(CodeAuth, "", "the login for %s on this host is damaged", registry)
		}
		user, pass, _ = strings.Cut(string(dec), ":")
	}
	if user == "" && a.IdentityToken == "" && a.RegistryToken == "" {
		if l.CredsStore != "" {
			return nil, helper(l.CredsStore)
		}
		return nil, nil
	}
	b, err := json.Marshal(map[string]string{"username": user, "password": strings.TrimRight(pass, "\x00"), "serveraddress": registry,
		"identitytoken": a.IdentityToken, "registrytoken": a.RegistryToken})
	if err != nil {
		return nil, fmt.Errorf("encoding a login: %w", err)
	}
	return http.Header{"X-Registry-Auth": {base64.URLEncoding.EncodeToString(b)}}, nil
}

// resolve asks the engine which digest ref means in its registry now; a digest
// or an image id that is on the host needs no registry.
func (h *hostOps) resolve(ctx context.Context, ref string) (Image, error) {
	if localID(ref) {
		return h.localImage(ctx, ref, ref)
	}
	r, err := parseReference(ref)
	if err != nil {
		return Image{}, err
	}
	if r.digest != "" {
		img, err := h.localImage(ctx, ref, r.repo+"@"+r.digest)
		if err == nil || !isCode(err, CodeNotFound) {
			return img, err
		}
	}
	img, err := h.distribution(ctx, ref, r)
	if err != nil {
		return Image{}, err
	}
	local, err := h.localImage(ctx, ref, img.Digest)
	if isCode(err, CodeNotFound) {
		return img, nil
	}
	return local, err
}

func (h *hostOps) distribution(ctx context.Context, ref string, r reference) (Image, error) {
	head, err := h.login(r.registry())
	if err != nil {
		return Image{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	prefix, err := h.eng.negotiate(ctx)
	if err != nil {
		return Image{}, err
	}
	var d struct {
		Descriptor struct {
			Digest string `json:"digest"`
		}
		Platforms []struct {
			OS           string `json:"os"`
			Architecture string `json:"architecture"`
		}
	}
	_, v := h.eng.facts()
	if err := h.eng.call(ctx, http.MethodGet, prefix+"/distribution/"+ref+"/json", nil, head, nil, &d); err != nil {
		return Image{}, fmt.Errorf("resolving %s: %w", ref, err)
	}
	if !hexSHA256.MatchString(strings.TrimPrefix(d.Descriptor.Digest, "sha256:")) {
		return Image{}, errorf(CodeEngine, "", "the registry's digest of %s is not a SHA-256", ref)
	}
	img := Image{Ref: ref, Digest: r.repo + "@" + d.Descriptor.Digest}
	for _, p := range d.Platforms {
		if img.OS == "" || p.OS == v.Os && p.Architecture == v.Arch {
			img.OS, img.Arch = p.OS, p.Architecture
		}
	}
	return img, nil
}

// localImage reads an image that is on the host; name is what the engine knows it by.
func (h *hostOps) localImage(ctx context.Context, ref, name string) (Image, error) {
	_, o, err := h.eng.image(ctx, name)
	if err != nil {
		return Image{}, err
	}
	img := Image{Ref: ref, ID: str(o, "Id"), SizeBytes: int64(number(o, "Size")), Build: buildOf(o), OS: str(o, "Os"), Arch: str(o, "Architecture"), Present: true}
	if strings.Contains(name, "@") {
		img.Digest = name
	} else if d := texts(o, "RepoDigests"); len(d) > 0 {
		img.Digest = d[0]
	}
	return img, nil
}

// progressEvery keeps a pull from sending more than a terminal can show.
const progressEvery = 250 * time.Millisecond

// pull fetches an image by digest; one that is there already costs no traffic.
func (h *hostOps) pull(ctx context.Context, ref string, progress func(PullProgress)) (Image, error) {
	if localID(ref) {
		return h.localImage(ctx, ref, ref)
	}
	r, err := parseReference(ref)
	if err != nil {
		return Image{}, err
	}
	if r.digest == "" {
		return Image{}, errorf(CodeBadRequest, "resolve the tag first", "pulling %s: a digest is needed, a tag may mean something else on each host", ref)
	}
	name := r.repo + "@" + r.digest
	if img, err := h.localImage(ctx, ref, name); err == nil || !isCode(err, CodeNotFound) {
		return img, err
	}
	head, err := h.login(r.registry())
	if err != nil {
		return Image{}, err
	}
	prefix, err := h.eng.negotiate(ctx)
	if err != nil {
		return Image{}, err
	}
	q := url.Values{"fromImage": {r.repo}, "tag": {r.digest}}
	resp, err := h.eng.open(ctx, http.MethodPost, prefix+"/images/create", q, head, nil)
	if err != nil {
		return Image{}, fmt.Errorf("pulling %s: %w", name, err)
	}
	defer resp.Body.Close()
	if err := readPull(resp.Body, progress); err != nil {
		return Image{}, fmt.Errorf("pulling %s: %w", name, err)
	}
	img, err := h.localImage(ctx, ref, name)
	if err != nil {
		return Image{}, fmt.Errorf("reading the pulled image: %w", err)
	}
	return img, nil
}

// readPull follows the engine's progress; an error in it is the pull's error,
// although the answer began with 200.
func readPull(r io.Reader, progress func(PullProgress)) error {
	d := json.NewDecoder(r)
	last := map[string]time.Time{}
	for {
		var m struct {
			ID             string `json:"id"`
			Status         string `json:"status"`
			Error          string `json:"error"`
			ProgressDetail struct {
				Current int64 `json:"current"`
				Total   int64 `json:"total"`
			} `json:"progressDetail"`
		}
		if err := d.Decode(&m); err == io.EOF {
			return nil
		} else if err != nil {
			return errorf(CodeEngineAway, "", "the engine's answer ended early: %v", err)
		}
		if m.Error != "" {
			code, hint := classify(0, m.Error)
			return errorf(code, hint, "%s", m.Error)
		}
		now := time.Now()
		busy := m.ProgressDetail.Total > 0 && m.ProgressDetail.Current < m.ProgressDetail.Total
		if progress == nil || m.ID == "" || busy && now.Sub(last[m.ID]) < progressEvery {
			continue
		}
		if busy {
			last[m.ID] = now
		}
		progress(PullProgress{Layer: m.ID, Status: m.Status, CurrentBytes: m.ProgressDetail.Current, TotalBytes: m.ProgressDetail.Total})
	}
}
