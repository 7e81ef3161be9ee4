package realhosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/docker/go-connections/nat"

	"github.com/qnetops/qnetops/lab/simnode"
)

func goarch() string { return runtime.GOARCH }

// DataDir is where a node's data lies on its host; it is bound to /app/data in the container (facts 5.2).
const DataDir = "/opt/qnet/data"

// identityEnv is the environment that decides a node's id, then what the caller adds.
func identityEnv(cfg Config, i int) []string {
	var env []string
	if i < cfg.SuperFrom {
		env = append(env, "QNET_BOOTSTRAP_ID="+HostID(i))
	}
	return append(env, cfg.NodeEnv(i)...)
}

// containerEnv is the environment a node's container is created with. Of two values of one name the later counts.
func (c *Cluster) containerEnv(cfg Config, host Host, genesis time.Time) []string {
	var peers, supers []string
	for _, other := range c.state.Hosts {
		peers = append(peers, other.NodeID+"@"+other.Address+":9876")
		if other.Role == "super" {
			supers = append(supers, other.NodeID)
		}
	}
	env := []string{
		simnode.EnvPeers + "=" + strings.Join(peers, ","),
		fmt.Sprintf("%s=%d", simnode.EnvGenesisCount, len(peers)-len(supers)),
		fmt.Sprintf("%s=%d", simnode.EnvGenesis, genesis.UnixNano()),
	}
	if len(supers) > 0 {
		env = append(env, simnode.EnvSupers+"="+strings.Join(supers, ","))
	}
	return lastOfEach(append(env, identityEnv(cfg, host.Index)...))
}

func lastOfEach(env []string) []string {
	var out []string
	at := map[string]int{}
	for _, pair := range env {
		key, _, _ := strings.Cut(pair, "=")
		if i, ok := at[key]; ok {
			out[i] = pair
			continue
		}
		at[key] = len(out)
		out = append(out, pair)
	}
	return out
}

// pullFirst pulls the image that nodes start with.
func (c *Cluster) pullFirst(ctx context.Context, cfg Config, host Host) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	ref := c.Image(cfg.Image)
	if err := pull(ctx, engine, ref); err != nil {
		return fmt.Errorf("host %s: pulling %s: %w", host.ID, ref, err)
	}
	return nil
}

// runNode starts the node's container of a host, with the settings facts 5.2 gives for its role.
func (c *Cluster) runNode(ctx context.Context, cfg Config, host Host, genesis time.Time) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	if err := os.MkdirAll(c.paths.in(host.ID, DataDir), 0o755); err != nil {
		return fmt.Errorf("host %s: making its data folder: %w", host.ID, err)
	}
	settings, hostSettings := &container.Config{Image: c.Image(cfg.Image), Env: c.containerEnv(cfg, host, genesis)}, nodeHostConfig(host)
	cfg.Container(host.Index, settings, hostSettings)
	created, err := engine.ContainerCreate(ctx, settings, hostSettings, nil, nil, host.Container)
	if err != nil {
		return fmt.Errorf("host %s: creating %s: %w", host.ID, host.Container, err)
	}
	if err := engine.ContainerStart(ctx, created.ID, container.StartOptions{}); err != nil {
		return fmt.Errorf("host %s: starting %s: %w", host.ID, host.Container, err)
	}
	return nil
}

func nodeHostConfig(host Host) *container.HostConfig {
	ports := nat.PortMap{}
	for _, port := range []string{"8001/tcp", "9876/tcp", "9877/tcp", "10876/udp"} {
		ports[nat.Port(port)] = []nat.PortBinding{{HostPort: nat.Port(port).Port()}}
	}
	limits := map[string]string{"max-size": "200m", "max-file": "50"}
	if host.Role == "super" {
		limits = map[string]string{"max-size": "100m", "max-file": "10"}
	}
	return &container.HostConfig{
		Binds: []string{DataDir + ":/app/data"}, PortBindings: ports,
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyAlways},
		LogConfig:     container.LogConfig{Type: "json-file", Config: limits},
	}
}

// pull reads the whole answer: the engine pulls only as long as it is read, and a failure is a message in it.
func pull(ctx context.Context, engine *client.Client, ref string) error {
	body, err := engine.ImagePull(ctx, ref, image.PullOptions{})
	if err != nil {
		return err
	}
	defer body.Close()
	messages := json.NewDecoder(body)
	for {
		var message struct {
			Error string `json:"error"`
		}
		err := messages.Decode(&message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if message.Error != "" {
			return errors.New(message.Error)
		}
	}
}
