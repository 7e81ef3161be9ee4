package realhosts

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/qnetops/qnetops/lab/simnode"
)

// TestProcessIdentity checks that a pid alone is never enough.
func TestProcessIdentity(t *testing.T) {
	self, err := identify(os.Getpid())
	if err != nil {
		t.Skip("no /proc here") // the package is Linux's alone
	}
	if !self.Alive() {
		t.Error("this process is dead")
	}
	for name, other := range map[string]Process{
		"another start": {PID: self.PID, Start: self.Start + 1, Boot: self.Boot},
		"another boot":  {PID: self.PID, Start: self.Start, Boot: "x"},
		"no pid":        {Start: self.Start, Boot: self.Boot},
	} {
		if other.Alive() {
			t.Errorf("%s: alive", name)
		}
		if err := other.kill(context.Background()); err != nil { // must not hit this process
			t.Errorf("%s: %v", name, err)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := child.kill(context.Background()); err != nil { // nobody has waited for it: a zombie counts as gone
		t.Fatal(err)
	}
	cmd.Wait()
}

func TestConfig(t *testing.T) {
	good := Config{Nodes: 1, Dir: t.TempDir(), Binary: "/proc/self/exe"}
	for _, bad := range []struct {
		name, want string
		change     func(*Config)
	}{
		{"no nodes", "nodes must be 1..50", func(c *Config) { c.Nodes = 0 }},
		{"too many", "nodes must be 1..50", func(c *Config) { c.Nodes = 51 }},
		{"no folder", "no folder", func(c *Config) { c.Dir = "" }},
		{"block", "block time must be positive", func(c *Config) { c.Block = -time.Second }},
		{"no binary", "no binary", func(c *Config) { c.Binary = "" }},
		{"not a binary", "reading node binary", func(c *Config) { c.Binary = "unit_test.go" }},
		{"dynamic", "dynamically linked", func(c *Config) { c.Binary = dynamicProgram(t) }},
	} {
		cfg := good
		bad.change(&cfg)
		if _, err := cfg.withDefaults(); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", bad.name, err, bad.want)
		}
	}
}

func dynamicProgram(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/bin/sh", "/usr/bin/env", "/bin/ls"} {
		var dynamic *DynamicBinaryError
		if errors.As(staticBinary(name), &dynamic) {
			return name
		}
	}
	t.Skip("every program here is static")
	return ""
}

// TestImages checks what a roll between the images must notice (DESIGN section 5), and that an image's digest
// rests on its content alone.
func TestImages(t *testing.T) {
	images := DefaultImages()
	var tags, builds []string
	for _, image := range images {
		tags, builds = append(tags, image.Tag), append(builds, image.Build)
	}
	if !slices.Equal(tags, []string{"v1", "v2", "crash", "gap", "oom", "liar", "mute", "slow"}) {
		t.Errorf("tags %q", tags)
	}
	if builds[0] != "1111111" || builds[1] != "2222222" || len(slices.Compact(slices.Sorted(slices.Values(builds)))) != len(builds) {
		t.Errorf("builds %q", builds)
	}
	one, two := images[0].config(time.Second), images[1].config(time.Second)
	if slices.Equal(one.Env, two.Env) || slices.Equal(one.Cmd, two.Cmd) || one.Healthcheck.Interval == two.Healthcheck.Interval || len(one.Labels) == 0 {
		t.Error("v1 and v2 do not differ in env, cmd, labels and healthcheck")
	}
	digest := func() string {
		layer, err := tarLayer([]tarFile{{name: "qnetops", mode: 0o755, data: []byte("binary")}})
		if err != nil {
			t.Fatal(err)
		}
		image, err := images[0].build(layer, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		hash, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return hash.String()
	}
	if first := digest(); first != digest() {
		t.Error("two builds of one image differ")
	}
}

func TestRealDir(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if got, err := realDir(filepath.Join(dir, "link/not/yet")); err != nil || got != filepath.Join(dir, "not/yet") {
		t.Errorf("%s %v", got, err)
	}
}

func TestUnescapeMount(t *testing.T) {
	if got := unescapeMount(`/a\040b\011c\134d`); got != "/a b\tc\\d" {
		t.Errorf("%q", got)
	}
}

func TestAddImage(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/qnet"
	layer, err := tarLayer([]tarFile{{name: "qnetops", mode: 0o755, data: []byte("binary")}})
	if err != nil {
		t.Fatal(err)
	}
	base, err := DefaultImages()[1].build(layer, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	named := func(tag string) name.Tag {
		ref, err := name.NewTag(repository+":"+tag, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	if err := remote.Write(named("v2"), base); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := addImage(ctx, repository+":v2", repository+":restart", "restart", []byte(`{"pin":1}`)); err == nil {
		t.Error("a manifest with an unknown key was built in")
	}
	manifest := simnode.Manifest{Restart: simnode.Restart{ResumeFromMB: 4, Excluded: []string{"a,b"}}, Pin: simnode.Pin{Index: 4}}
	raw, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	added, err := addImage(ctx, repository+":v2", repository+":restart", "restart", raw)
	if err != nil || added.Ref != repository+":restart" || added.Build != manifest.Build("restart") {
		t.Fatalf("%+v, %v", added, err)
	}
	image, err := remote.Image(named("restart"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	variable, err := manifest.Env()
	if err != nil {
		t.Fatal(err)
	}
	env := file.Config.Env
	if !slices.Contains(env, variable) || !slices.Contains(env, "QNET_BUILD_ID="+added.Build) || slices.Contains(env, "QNET_BUILD_ID=2222222") ||
		!slices.Contains(env, simnode.EnvBlock+"=100ms") || file.Config.Healthcheck == nil {
		t.Errorf("config %+v", file.Config)
	}
	if digest, err := image.Digest(); err != nil || digest.String() != added.Digest {
		t.Errorf("digest %s, registry has %s, %v", added.Digest, digest, err)
	}
	if again, err := addImage(ctx, repository+":v2", repository+":restart", "restart", raw); err != nil || again != added {
		t.Errorf("equal content, another image: %+v, %v", again, err)
	}
}
