package realhosts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/lab/simnode"
)

// ImageSpec describes one image of the node, qnet:Tag.
type ImageSpec struct {
	Tag string
	// Build is QNET_BUILD_ID, as the node's own images stamp it (facts 5.1).
	Build string
	// Behaviour is QNETOPS_LAB_BEHAVIOUR; empty for a good node.
	Behaviour string
	// Env, Labels and Health are further defaults. Images differ in them so that a replace which pins the old
	// image's defaults onto the new container is caught.
	Env    map[string]string
	Labels map[string]string
	Health time.Duration
}

// DefaultImages are the images of the lab: two good builds, and bad ones of which each fails at its own milestone.
func DefaultImages() []ImageSpec {
	images := []ImageSpec{
		{Tag: "v1", Build: "1111111", Health: 30 * time.Second, Env: map[string]string{"QNET_LAB_DEFAULT": "one", "QNET_LAB_ONLY_V1": "1"},
			Labels: map[string]string{"lab.only.v1": "1"}},
		{Tag: "v2", Build: "2222222", Health: 20 * time.Second, Env: map[string]string{"QNET_LAB_DEFAULT": "two", "QNET_LAB_ONLY_V2": "1"},
			Labels: map[string]string{"lab.only.v2": "1"}},
	}
	for i, behaviour := range []string{"crash", "gap", "oom", "liar", "mute", "slow"} {
		build := fmt.Sprintf("%[1]d%[1]d%[1]d%[1]d%[1]d%[1]d%[1]d", 3+i)
		image := ImageSpec{Tag: behaviour, Build: build, Behaviour: behaviour, Health: 20 * time.Second, Env: map[string]string{"QNET_LAB_DEFAULT": behaviour}}
		if behaviour == "liar" {
			image.Env[simnode.EnvLieBuild] = images[0].Build // stamped new, answers old
		}
		images = append(images, image)
	}
	return images
}

// config is the image's Config as the engine will show it. The data directory and DOCKER_ENV are as facts 5.1 has
// them.
func (s ImageSpec) config(block time.Duration) v1.Config {
	env := []string{"PATH=/", "DOCKER_ENV=1", "QNET_DATA_DIR=/app/data", "QNET_BUILD_ID=" + s.Build, simnode.EnvBlock + "=" + block.String()}
	if s.Behaviour != "" {
		env = append(env, simnode.EnvBehaviour+"="+s.Behaviour)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, key+"="+s.Env[key])
	}
	labels := map[string]string{"org.opencontainers.image.title": "qnet", "org.opencontainers.image.version": s.Tag, "org.opencontainers.image.revision": s.Build}
	maps.Copy(labels, s.Labels)
	return v1.Config{
		Entrypoint: []string{"/qnetops", "lab", "node"}, Cmd: []string{"--image", s.Tag},
		Env: env, Labels: labels, WorkingDir: "/app",
		ExposedPorts: map[string]struct{}{"8001/tcp": {}, "9876/tcp": {}, "9877/tcp": {}, "10876/udp": {}},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/qnetops", "lab", "node", "--probe"}, Interval: s.Health, Timeout: 5 * time.Second,
			StartPeriod: 10 * time.Second, Retries: 3},
	}
}

// build makes an image: the layer with the binary, which all images share, and a small one of its own, so that
// pulling another tag has something to pull.
func (s ImageSpec) build(binary v1.Layer, block time.Duration) (v1.Image, error) {
	own, err := tarLayer([]tarFile{{name: "etc/qnet-image", mode: 0o644, data: []byte(s.Tag + " " + s.Build + "\n")}})
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, binary, own)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", goarch(), s.config(block)
	return mutate.ConfigFile(image, file)
}

type tarFile struct {
	name string
	mode int64
	data []byte // nil is a folder
}

// tarLayer packs files without times or owners: the same content gives the same digest.
func tarLayer(files []tarFile) (v1.Layer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, file := range files {
		header := &tar.Header{Name: file.name, Mode: file.mode, Size: int64(len(file.data)), Typeflag: tar.TypeReg}
		if file.data == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(file.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
}

// serveRegistry answers on the bridge until the cluster is closed or its record is gone. Nothing outside the machine
// can reach it.
func (c *Cluster) serveRegistry(ctx context.Context) error {
	if err := os.MkdirAll(c.paths.registry(), 0o755); err != nil {
		return fmt.Errorf("making the registry's folder: %w", err)
	}
	listener, err := c.listenRegistry(ctx)
	if err != nil {
		return fmt.Errorf("starting the registry: %w", err)
	}
	quiet := log.New(io.Discard, "", 0)
	server := &http.Server{ErrorLog: quiet, ReadHeaderTimeout: 10 * time.Second,
		Handler: registry.New(registry.Logger(quiet), registry.WithBlobHandler(registry.NewDiskBlobHandler(c.paths.registry())))}
	watch, stop := context.WithCancel(context.Background())
	c.closeRegistry = func() error { stop(); return server.Close() }
	go server.Serve(listener)
	go func() {
		// Down in another process cannot close the listener here; left open it would hold the address of a later lab.
		if c.Wait(watch) == nil {
			server.Close()
		}
	}()
	return nil
}

// listenRegistry gives the owner of a lab that went down a moment ago the time to notice.
func (c *Cluster) listenRegistry(ctx context.Context) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var listener net.Listener
	err := poll(ctx, 100*time.Millisecond, c.state.Registry+" to be free", func() (bool, error) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.state.Registry)
		if errors.Is(err, unix.EADDRINUSE) {
			return false, nil
		}
		listener = l
		return err == nil, err
	})
	return listener, err
}

// pushImages builds all images and puts them into the registry. Their digests depend only on binary, spec and
// block time.
func (c *Cluster) pushImages(ctx context.Context, cfg Config) error {
	data, err := os.ReadFile(cfg.Binary)
	if err != nil {
		return fmt.Errorf("reading node binary: %w", err)
	}
	binary, err := tarLayer([]tarFile{{name: "qnetops", mode: 0o755, data: data}, {name: "app", mode: 0o755}, {name: "app/data", mode: 0o755},
		{name: "tmp", mode: 0o1777}, {name: "etc", mode: 0o755}})
	if err != nil {
		return fmt.Errorf("packing node binary: %w", err)
	}
	for _, spec := range cfg.Images {
		image, err := spec.build(binary, cfg.Block)
		if err != nil {
			return fmt.Errorf("building image qnet:%s: %w", spec.Tag, err)
		}
		ref, err := name.NewTag(c.Image(spec.Tag), name.Insecure)
		if err != nil {
			return fmt.Errorf("naming image qnet:%s: %w", spec.Tag, err)
		}
		if err := remote.Write(ref, image, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("pushing image qnet:%s: %w", spec.Tag, err)
		}
	}
	return nil
}

// AddImage puts a further release into the registry while the lab runs: v2 with a restart manifest, in the JSON form of a
// manifest file (see simnode.Manifest). What the node makes of it is found out when it starts; one that cannot be read is an
// error here. A tag that was added before can be given again and then names the newer image. It needs no binary: the layers
// are there.
func (c *Cluster) AddImage(ctx context.Context, tag string, manifest []byte) (simnode.AddedImage, error) {
	if slices.ContainsFunc(DefaultImages(), func(s ImageSpec) bool { return s.Tag == tag }) {
		return simnode.AddedImage{}, fmt.Errorf("image %s is one of the lab's own: choose another tag", tag)
	}
	added, err := addImage(ctx, c.Image("v2"), c.Image(tag), tag, manifest)
	if err != nil {
		return simnode.AddedImage{}, fmt.Errorf("adding image qnet:%s: %w", tag, err)
	}
	return added, nil
}

// addImage copies the image base to ref with another config.
func addImage(ctx context.Context, base, ref, tag string, manifest []byte) (simnode.AddedImage, error) {
	m, err := simnode.ParseManifest(manifest)
	if err != nil {
		return simnode.AddedImage{}, err
	}
	variable, err := m.Env()
	if err != nil {
		return simnode.AddedImage{}, err
	}
	from, err := name.NewTag(base, name.Insecure)
	if err != nil {
		return simnode.AddedImage{}, err
	}
	to, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		return simnode.AddedImage{}, err
	}
	image, err := remote.Image(from, remote.WithContext(ctx))
	if err != nil {
		return simnode.AddedImage{}, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return simnode.AddedImage{}, err
	}
	file = file.DeepCopy()
	added := simnode.AddedImage{Ref: ref, Build: m.Build(tag)}
	config := &file.Config
	config.Env = lastOfEach(append(config.Env, "QNET_BUILD_ID="+added.Build, variable))
	config.Cmd = []string{"--image", tag}
	config.Labels["org.opencontainers.image.version"], config.Labels["org.opencontainers.image.revision"] = tag, added.Build
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return simnode.AddedImage{}, err
	}
	if err := remote.Write(to, image, remote.WithContext(ctx)); err != nil {
		return simnode.AddedImage{}, err
	}
	digest, err := image.Digest()
	added.Digest = digest.String()
	return added, err
}

// Image is the full name of an image of the lab's registry.
func (c *Cluster) Image(tag string) string { return c.state.Registry + "/qnet:" + tag }

// Digest asks the registry which digest a tag has now: "sha256:…".
func (c *Cluster) Digest(ctx context.Context, tag string) (string, error) {
	ref, err := name.NewTag(c.Image(tag), name.Insecure)
	if err != nil {
		return "", fmt.Errorf("naming image qnet:%s: %w", tag, err)
	}
	desc, err := remote.Head(ref, remote.WithContext(ctx))
	if err != nil {
		return "", errors.Join(fmt.Errorf("asking the registry for qnet:%s", tag), err)
	}
	return desc.Digest.String(), nil
}
