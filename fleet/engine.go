package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
)

// MinEngineAPI is the oldest Docker API this program reads, that of Docker 20.10.
const MinEngineAPI = "1.41"

// Engine reads a host's Docker engine. It has no call that changes anything,
// and none whose answer holds the environment of a container.
type Engine struct {
	conn *Conn

	lock  gate
	api   *client.Client
	idle  *http.Transport
	ready bool
}

// EngineInfo is what a host's engine says of itself.
type EngineInfo struct {
	Version      string // of the engine, e.g. "20.10.24"
	API          string // version spoken by this program with it
	OS, Arch     string // Docker's words: linux, x86_64
	Root         string // data root on the host
	Driver       string // storage driver
	LogDriver    string // default logging driver
	Containers   int
	Running      int
	Images       int
	Time         time.Time // of the host's clock, zero when not given
	Warnings     []string
	CgroupDriver string
}

// Port is a port of a container that the host publishes.
type Port struct {
	HostIP    string
	Host      uint16 // 0: exposed, not published
	Container uint16
	Proto     string // tcp, udp
}

// Mount is a place of the host or a volume seen inside a container.
type Mount struct {
	Kind        string // bind, volume, tmpfs
	Volume      string
	Source      string // on the host
	Destination string
	Writable    bool
}

// Container is an entry of the engine's list of all containers.
type Container struct {
	ID          string
	Name        string
	Image       string // reference it was created with
	ImageID     string
	State       string // Docker's word: running, exited, ...
	Status      string // Docker's sentence: "Up 3 hours"
	Created     time.Time
	Command     string
	NetworkMode string
	Networks    []string
	Ports       []Port
	Mounts      []Mount
	Compose     string // compose project, "" for none
}

// Image is an entry of the engine's list of images.
type Image struct {
	ID      string
	Tags    []string
	Digests []string // repository@sha256:…
	Bytes   int64
	Created time.Time
}

// Event is something that happened to a container.
type Event struct {
	Time      time.Time
	Action    string // start, die, rename, destroy, oom, ...
	Container string // id
	Name      string
	Image     string
	ExitCode  string // of die
	Signal    string // of kill
}

func newEngine(c *Conn) *Engine { return &Engine{conn: c, lock: newGate()} }

// dialNote carries the reason of a failed dial past the client library, which
// puts words of its own in its place.
type dialNote struct {
	mu  sync.Mutex
	err error
}

type dialNoteKey struct{}

func (n *dialNote) set(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

func (n *dialNote) get() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

func (e *Engine) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := e.conn.link.dialUnix(ctx, e.conn.host.EngineSocket)
	if note, ok := ctx.Value(dialNoteKey{}).(*dialNote); ok {
		note.set(err)
	}
	return conn, err
}

// use gives a client that has agreed on a version, and runs f with it.
func (e *Engine) use(ctx context.Context, what string, f func(context.Context, *client.Client) error) error {
	note := &dialNote{}
	ctx = context.WithValue(ctx, dialNoteKey{}, note)
	api, err := e.client(ctx)
	if err == nil {
		err = f(ctx, api)
	}
	return e.explain(ctx, what, note, err)
}

func (e *Engine) client(ctx context.Context) (*client.Client, error) {
	if err := e.lock.enter(ctx); err != nil {
		return nil, err
	}
	defer e.lock.leave()
	if e.api == nil {
		// The unix host keeps proxies of this machine's environment out.
		tr := &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true, ReadBufferSize: readBuffer, WriteBufferSize: writeBuffer}
		api, err := client.NewClientWithOpts(
			client.WithHTTPClient(&http.Client{Transport: tr}),
			client.WithHost("unix://"+e.conn.host.EngineSocket),
			client.WithDialContext(e.dial),
			client.WithAPIVersionNegotiation())
		if err != nil {
			return nil, err
		}
		e.api, e.idle = api, tr
	}
	if e.ready {
		return e.api, nil
	}
	ping, err := e.api.Ping(ctx)
	if err != nil {
		return nil, err
	}
	if versions.LessThan(ping.APIVersion, MinEngineAPI) {
		return nil, &EngineError{Host: e.conn.host.ID, Fault: EngineTooOld, API: orDefault(ping.APIVersion, "unknown")}
	}
	e.api.NegotiateAPIVersionPing(ping)
	e.ready = true
	return e.api, nil
}

// rest gives up the idle connections; a call that is at work keeps its own.
func (e *Engine) rest() {
	select {
	case e.lock <- struct{}{}:
		defer e.lock.leave()
		if e.idle != nil {
			e.idle.CloseIdleConnections()
		}
	default:
	}
}

// explain gives an error of the client library this package's types.
func (e *Engine) explain(ctx context.Context, what string, note *dialNote, err error) error {
	if err == nil {
		return nil
	}
	var known interface{ Hint() string }
	fault := &EngineError{Host: e.conn.host.ID, Fault: EngineAnswer, What: what, Err: err}
	switch dialled := note.get(); {
	case dialled != nil && ctx.Err() == nil:
		return fmt.Errorf("docker engine: %s: %w", what, dialled)
	case ctx.Err() != nil:
		return fmt.Errorf("host %s: docker engine: %s: %w", e.conn.host.ID, what, ctx.Err())
	case errors.As(err, &known):
		return err
	case e.conn.link.isDead():
		return fmt.Errorf("docker engine: %s: %w", what, e.conn.link.dropped())
	case errdefs.IsNotFound(err):
		fault.Fault = EngineNotFound
	case errdefs.IsPermissionDenied(err), errdefs.IsUnauthorized(err):
		fault.Fault = EnginePermission
	case client.IsErrConnectionFailed(err):
		fault.Fault = EngineUnreachable
	}
	return fault
}

// Ping asks whether the engine answers and speaks a version this program reads.
func (e *Engine) Ping(ctx context.Context) error {
	return e.use(ctx, "ping", func(ctx context.Context, api *client.Client) error {
		_, err := api.Ping(ctx)
		return err
	})
}

// Info asks the engine about itself.
func (e *Engine) Info(ctx context.Context) (EngineInfo, error) {
	info, err := e.info(ctx)
	if e.forwarding(err) {
		return e.agentInfo(ctx, err)
	}
	return info, err
}

func (e *Engine) info(ctx context.Context) (EngineInfo, error) {
	var info EngineInfo
	err := e.use(ctx, "info", func(ctx context.Context, api *client.Client) error {
		raw, err := api.Info(ctx)
		if err != nil {
			return err
		}
		info = EngineInfo{
			Version: raw.ServerVersion, API: api.ClientVersion(), OS: raw.OSType, Arch: raw.Architecture, Root: raw.DockerRootDir,
			Driver: raw.Driver, LogDriver: raw.LoggingDriver, Containers: raw.Containers, Running: raw.ContainersRunning,
			Images: raw.Images, Warnings: raw.Warnings, CgroupDriver: raw.CgroupDriver,
		}
		if at, err := time.Parse(time.RFC3339Nano, raw.SystemTime); err == nil {
			info.Time = at
		}
		return nil
	})
	return info, err
}

// Containers lists all containers, stopped ones too, by name.
func (e *Engine) Containers(ctx context.Context) ([]Container, error) {
	var list []Container
	err := e.use(ctx, "listing containers", func(ctx context.Context, api *client.Client) error {
		raw, err := api.ContainerList(ctx, container.ListOptions{All: true})
		if err != nil {
			return err
		}
		for i := range raw {
			list = append(list, containerOf(&raw[i]))
		}
		return nil
	})
	if e.forwarding(err) {
		list, err = e.agentContainers(ctx, err)
	}
	slices.SortFunc(list, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

func containerOf(raw *container.Summary) Container {
	c := Container{
		ID: raw.ID, Image: raw.Image, ImageID: raw.ImageID, State: string(raw.State), Status: raw.Status, Command: raw.Command,
		Created: time.Unix(raw.Created, 0).UTC(), NetworkMode: raw.HostConfig.NetworkMode, Compose: raw.Labels["com.docker.compose.project"],
	}
	for _, name := range raw.Names {
		// A name with a second slash is a legacy link seen from another container.
		if bare := strings.TrimPrefix(name, "/"); !strings.Contains(bare, "/") {
			c.Name = bare
		}
	}
	for _, p := range raw.Ports {
		c.Ports = append(c.Ports, Port{HostIP: p.IP, Host: p.PublicPort, Container: p.PrivatePort, Proto: p.Type})
	}
	for _, m := range raw.Mounts {
		c.Mounts = append(c.Mounts, Mount{Kind: string(m.Type), Volume: m.Name, Source: m.Source, Destination: m.Destination, Writable: m.RW})
	}
	if raw.NetworkSettings != nil {
		for name := range raw.NetworkSettings.Networks {
			c.Networks = append(c.Networks, name)
		}
		slices.Sort(c.Networks)
	}
	return c
}

// Images lists the images of the host.
func (e *Engine) Images(ctx context.Context) ([]Image, error) {
	return e.images(ctx, filters.NewArgs())
}

func (e *Engine) images(ctx context.Context, args filters.Args) ([]Image, error) {
	var list []Image
	err := e.use(ctx, "listing images", func(ctx context.Context, api *client.Client) error {
		raw, err := api.ImageList(ctx, image.ListOptions{Filters: args})
		if err != nil {
			return err
		}
		for _, i := range raw {
			list = append(list, Image{ID: i.ID, Tags: i.RepoTags, Digests: i.RepoDigests, Bytes: i.Size, Created: time.Unix(i.Created, 0).UTC()})
		}
		return nil
	})
	return list, err
}

// Image finds an image of the host by id, tag or digest. It reads the list and
// not the inspect, which would bring the image's environment; the build id
// stamped there is given by the agent's Resolve. No such image: EngineNotFound.
func (e *Engine) Image(ctx context.Context, ref string) (Image, error) {
	args := filters.NewArgs()
	byID := strings.HasPrefix(ref, "sha256:")
	if !byID {
		args.Add("reference", ref)
	}
	list, err := e.images(ctx, args)
	if e.forwarding(err) {
		return e.agentImage(ctx, ref, err)
	}
	if err != nil {
		return Image{}, err
	}
	for _, i := range list {
		if !byID || i.ID == ref {
			return i, nil
		}
	}
	return Image{}, e.noImage(ref)
}

func (e *Engine) noImage(ref string) error {
	return &EngineError{Host: e.conn.host.ID, Fault: EngineNotFound, What: "looking for image " + ref, Err: errors.New("no such image on the host")}
}

// Events follows what happens to containers from since on (zero: from now),
// limited to the named ones when there are any (by way of the agent: to those of
// the node). Both channels end with ctx, the
// connection or the engine; the last word on the error channel says which.
func (e *Engine) Events(ctx context.Context, since time.Time, names ...string) (<-chan Event, <-chan error) {
	out, errs := make(chan Event), make(chan error, 1)
	go func() {
		defer close(errs)
		defer close(out)
		err := e.use(ctx, "following events", func(ctx context.Context, api *client.Client) error {
			return follow(ctx, api, since, names, out)
		})
		if e.forwarding(err) {
			err = e.agentEvents(ctx, since, names, out, err)
		}
		errs <- err
	}()
	return out, errs
}

func follow(ctx context.Context, api *client.Client, since time.Time, names []string, out chan<- Event) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	args := filters.NewArgs(filters.Arg("type", "container"))
	for _, name := range names {
		args.Add("container", name)
	}
	opts := events.ListOptions{Filters: args}
	if !since.IsZero() {
		opts.Since = fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond())
	}
	messages, errs := api.Events(ctx, opts)
	for {
		select {
		case m := <-messages:
			select {
			case out <- eventOf(m):
			case <-ctx.Done():
				return ctx.Err()
			}
		case err := <-errs:
			return err
		}
	}
}

// eventOf takes what is known to be public: the attributes of an event hold all
// labels of the container as well, and the action of an exec its command line.
func eventOf(m events.Message) Event {
	action := string(m.Action)
	if strings.HasPrefix(action, "exec_") {
		action, _, _ = strings.Cut(action, ":")
	}
	return Event{
		Time: time.Unix(0, m.TimeNano).UTC(), Action: action, Container: m.Actor.ID, Name: m.Actor.Attributes["name"],
		Image: m.Actor.Attributes["image"], ExitCode: m.Actor.Attributes["exitCode"], Signal: m.Actor.Attributes["signal"],
	}
}
