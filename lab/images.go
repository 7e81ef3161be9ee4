package lab

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lab/simnode"
)

// RegistryHost is where the lab's images are; hosts.toml names it, so that
// qnet:v2 resolves there.
const RegistryHost = "registry.lab.example:5000"

// Repository is the full name of the node's image.
const Repository = RegistryHost + "/qnet"

// updaterImage is recognised as a second updater (facts 5.2).
const updaterImage = "containrrr/watchtower:latest"

// imageSpec is one image of the node, qnet:tag.
type imageSpec struct {
	tag, build, behaviour string
	health                time.Duration
	env, labels           []string
	manifest              string // EnvManifest with its value, empty for none
}

// AddImage puts a further release into the registry: v2 built once more with a
// restart manifest, which is the content of a manifest file in its JSON form
// (see simnode.Manifest). What the node makes of the manifest is found out when
// it starts; one that cannot be read is an error here. A tag of Tags cannot be
// given again, any other can, and then names the newer image.
func (l *Lab) AddImage(tag string, manifest []byte) (simnode.AddedImage, error) {
	if slices.Contains(Tags(), tag) {
		return simnode.AddedImage{}, fmt.Errorf("image %s is one of the lab's own: choose another tag", tag)
	}
	m, err := simnode.ParseManifest(manifest)
	if err != nil {
		return simnode.AddedImage{}, err
	}
	env, err := m.Env()
	if err != nil {
		return simnode.AddedImage{}, err
	}
	spec := imageSpec{tag: tag, health: 20 * time.Second, env: []string{"QNET_LAB_DEFAULT=two", "QNET_LAB_ONLY_V2=1"}, labels: []string{"lab.only.v2"},
		manifest: env, build: m.Build(tag)}
	ref := Repository + ":" + tag
	digest, err := l.registry.Push(ref, spec.image(l.chain))
	if err != nil {
		return simnode.AddedImage{}, fmt.Errorf("adding image %s: %w", tag, err)
	}
	return simnode.AddedImage{Ref: ref, Digest: digest, Build: spec.build}, nil
}

// Tags lists the tags of the lab's images: two good builds, and bad ones of
// which each fails at its own milestone.
func Tags() []string {
	var tags []string
	for _, s := range imageSpecs() {
		tags = append(tags, s.tag)
	}
	return tags
}

// BuildID is the QNET_BUILD_ID of a tag, empty for an unknown one.
func BuildID(tag string) string {
	for _, s := range imageSpecs() {
		if s.tag == tag {
			return s.build
		}
	}
	return ""
}

// imageSpecs are the images. v1 and v2 differ in default env, label, cmd and
// health check, so that a replace which pins the old image's defaults onto the
// new container is caught.
func imageSpecs() []imageSpec {
	specs := []imageSpec{
		{tag: "v1", health: 30 * time.Second, env: []string{"QNET_LAB_DEFAULT=one", "QNET_LAB_ONLY_V1=1"}, labels: []string{"lab.only.v1"}},
		{tag: "v2", health: 20 * time.Second, env: []string{"QNET_LAB_DEFAULT=two", "QNET_LAB_ONLY_V2=1"}, labels: []string{"lab.only.v2"}},
	}
	for _, b := range []string{"crash", "gap", "oom", "liar", "mute", "slow"} {
		specs = append(specs, imageSpec{tag: b, behaviour: b, health: 20 * time.Second, env: []string{"QNET_LAB_DEFAULT=" + b}})
	}
	for i := range specs {
		specs[i].build = strings.Repeat(strconv.Itoa(i+1), 7)
	}
	return specs
}

// image is the spec as a registry holds it. The chain's parameters are image
// defaults, as a network's are.
func (s imageSpec) image(chain []string) engine.Image {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "DOCKER_ENV=1", "RUST_LOG=info", "QNET_DATA_DIR=/app/data", "QNET_BUILD_ID=" + s.build}
	env = append(append(env, s.env...), chain...)
	if s.manifest != "" {
		env = append(env, s.manifest)
	}
	if s.behaviour != "" {
		env = append(env, simnode.EnvBehaviour+"="+s.behaviour)
	}
	if s.behaviour == "liar" {
		env = append(env, simnode.EnvLieBuild+"="+BuildID("v1"))
	}
	labels := map[string]string{"org.opencontainers.image.title": "qnet", "org.opencontainers.image.version": s.tag, "org.opencontainers.image.revision": s.build}
	for _, l := range s.labels {
		labels[l] = "1"
	}
	return engine.Image{Entrypoint: []string{"/qnetops", "lab", "node"}, Cmd: []string{"--image", s.tag}, Env: env, Labels: labels,
		WorkingDir: "/app", ExposedPorts: []string{"8001/tcp", "9876/tcp", "9877/tcp", "10876/udp"},
		Healthcheck: &engine.Healthcheck{Test: []string{"CMD", "/qnetops", "lab", "node", "--probe"}, Interval: s.health,
			Timeout: 5 * time.Second, StartPeriod: 10 * time.Second, Retries: 3},
		Size: 400 << 20, Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// pushImages fills the registry. The chain begins when the lab is made, so that
// pre-made history lies before it.
func (l *Lab) pushImages(specs []HostSpec) error {
	var supers []string
	genesis := 0
	for i, h := range specs {
		if m := l.cfg.Mirror; m > 0 && i >= m {
			break // runs no node: a member that never votes
		}
		if h.Role == "genesis" {
			genesis++
			continue
		}
		supers = append(supers, simnode.NodeID(l.nodeEnv(i+1, h)))
	}
	chain := []string{simnode.EnvBlock + "=" + l.cfg.Block.String(), fmt.Sprintf("%s=%d", simnode.EnvGenesis, l.began.UnixNano()),
		fmt.Sprintf("%s=%d", simnode.EnvGenesisCount, min(max(genesis, 1), genesisNodes)), simnode.EnvSupers + "=" + strings.Join(supers, ",")}
	if l.cfg.History > 0 {
		chain = append(chain, fmt.Sprintf("%s=%d", simnode.EnvHistory, l.cfg.History))
	}
	l.chain = chain
	for _, s := range imageSpecs() {
		if _, err := l.registry.Push(Repository+":"+s.tag, s.image(chain)); err != nil {
			return fmt.Errorf("filling the lab's registry: %w", err)
		}
	}
	updater := engine.Image{Entrypoint: []string{"/watchtower"}, Env: []string{"PATH=/usr/bin"}, Size: 14 << 20,
		Labels: map[string]string{"com.centurylinklabs.watchtower": "true"}, Created: time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)}
	if _, err := l.registry.Push(updaterImage, updater); err != nil {
		return fmt.Errorf("filling the lab's registry: %w", err)
	}
	return nil
}

// Sentinels are the secret values of every lab container, by variable. They
// must be found nowhere outside the hosts. A host's wallet seed is the sentinel
// followed by its id, since two wallets are two nodes.
func Sentinels() map[string]string {
	return map[string]string{
		"QNET_WALLET_SEED":      "sentinel-wallet-abandon-ability-able-about",
		"QNET_ADMIN_SECRET":     "sentinel-admin-secret-7f3a9c51",
		"QNET_API_KEY_EXPLORER": "sentinel-api-key-explorer-58c1d0",
		"QNET_API_KEY_ADMIN":    "sentinel-api-key-admin-93b6e2",
		"QNET_ACTIVATION_CODE":  "sentinel-activation-QNET-4F8A12",
	}
}

// nodeEnv is the environment that host i's container is created with.
func (l *Lab) nodeEnv(i int, h HostSpec) []string {
	s := Sentinels()
	env := []string{"QNET_WALLET_SEED=" + s["QNET_WALLET_SEED"] + "-" + h.ID}
	for _, k := range []string{"QNET_ADMIN_SECRET", "QNET_API_KEY_EXPLORER", "QNET_API_KEY_ADMIN", "QNET_ACTIVATION_CODE"} {
		env = append(env, k+"="+s[k])
	}
	if h.Role == "genesis" {
		env = append(env, "QNET_BOOTSTRAP_ID="+HostID(i), "QNET_GENESIS_BOOTSTRAP=1")
	} else {
		env = append(env, "QNET_MAX_STORAGE_GB=500")
	}
	return append(env, h.Env...)
}
