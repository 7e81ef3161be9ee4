package lab

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/qnetops/qnetops/lab/simnode"
)

// StateFile is where a lab that can be controlled records how, in its folder.
const StateFile = "lab.json"

// Record is the content of StateFile.
type Record struct {
	Schema  string `json:"schema"` // qnetops/lab/v1
	Backend string `json:"backend"`
	Nodes   int    `json:"nodes"`
	Block   string `json:"block"`
	PID     int    `json:"pid"`
	Network string `json:"network"` // unix or tcp
	Address string `json:"address"`
	Token   string `json:"token"`
	Hosts   string `json:"hosts"` // path of hosts.toml
}

// unixLimit is a safe length for the path of a unix socket.
const unixLimit = 100

// message is one line of the control connection, in both directions.
type message struct {
	Token string              `json:"token,omitempty"`
	Cmd   string              `json:"cmd,omitempty"` // fault, clear, status, kill, image, down
	Node  string              `json:"node,omitempty"`
	Kind  string              `json:"kind,omitempty"`
	Arg   string              `json:"arg,omitempty"`
	Image *simnode.AddedImage `json:"image,omitempty"`
	Error string              `json:"error,omitempty"`
	State *Status             `json:"status,omitempty"`
}

type controlServer struct {
	lab   *Lab
	l     net.Listener
	token string
	file  string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// ServeControl lets other processes control the lab and records in dir how. It
// answers until the lab is closed, which removes the record.
func (l *Lab) ServeControl(dir string) error {
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return fmt.Errorf("making the control token: %w", err)
	}
	ln, err := controlListener(dir)
	if err != nil {
		return fmt.Errorf("opening the control socket: %w", err)
	}
	c := &controlServer{lab: l, l: ln, token: hex.EncodeToString(token), file: filepath.Join(dir, StateFile), conns: map[net.Conn]struct{}{}}
	rec := Record{Schema: "qnetops/lab/v1", Backend: "process", Nodes: len(l.hosts), Block: l.cfg.Block.String(), PID: os.Getpid(),
		Network: ln.Addr().Network(), Address: ln.Addr().String(), Token: c.token, Hosts: filepath.Join(dir, HostsFile)}
	b, err := json.MarshalIndent(rec, "", "  ")
	if err == nil {
		os.Remove(c.file)
		err = os.WriteFile(c.file, append(b, '\n'), 0o600)
	}
	if err != nil {
		ln.Close()
		return fmt.Errorf("recording the lab: %w", err)
	}
	l.mu.Lock()
	l.control = c
	l.mu.Unlock()
	l.spawn(c.serve)
	return nil
}

// controlListener prefers a unix socket in the lab's folder; where its path
// would be too long for the kernel, a loopback port.
func controlListener(dir string) (net.Listener, error) {
	path := filepath.Join(dir, "lab.sock")
	if len(path) <= unixLimit {
		os.Remove(path)
		if l, err := net.Listen("unix", path); err == nil {
			return l, errors.Join(os.Chmod(path, 0o600))
		}
	}
	return net.Listen("tcp", "127.0.0.1:0")
}

func (c *controlServer) serve() {
	for {
		conn, err := c.l.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		c.conns[conn] = struct{}{}
		c.mu.Unlock()
		go c.talk(conn)
	}
}

func (c *controlServer) close() {
	os.Remove(c.file)
	c.l.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
}

func (c *controlServer) talk(conn net.Conn) {
	defer func() {
		c.mu.Lock()
		delete(c.conns, conn)
		c.mu.Unlock()
		conn.Close()
	}()
	in := bufio.NewScanner(conn)
	out := json.NewEncoder(conn)
	for in.Scan() {
		var m message
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			out.Encode(message{Error: "the line is not a control message"})
			return
		}
		if subtle.ConstantTimeCompare([]byte(m.Token), []byte(c.token)) != 1 {
			out.Encode(message{Error: "wrong token"})
			return
		}
		answer := c.do(m)
		out.Encode(answer)
		if m.Cmd == "down" {
			go c.lab.Close() // closes this connection too
			return
		}
	}
}

func (c *controlServer) do(m message) message {
	var err error
	answer := message{Cmd: m.Cmd}
	switch m.Cmd {
	case "fault":
		err = c.lab.Inject(m.Node, m.Kind, m.Arg)
	case "clear":
		err = c.lab.Clear(m.Node, m.Kind)
	case "kill":
		err = c.lab.Kill(m.Node, m.Kind)
	case "image":
		var added simnode.AddedImage
		added, err = c.lab.AddImage(m.Kind, []byte(m.Arg))
		answer.Image = &added
	case "status":
		s := c.lab.Status(c.lab.ctx)
		answer.State = &s
	case "down":
	default:
		err = fmt.Errorf("unknown command %q", m.Cmd)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

// Client controls a lab that runs in another process.
type Client struct {
	Record Record
	conn   net.Conn
	in     *bufio.Reader
}

// NotRunningError says that no lab answers in a folder.
type NotRunningError struct {
	Dir   string
	Cause error
}

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("no lab runs in %s: %v", e.Dir, e.Cause)
}

func (e *NotRunningError) Unwrap() error { return e.Cause }

// Hint says how to get one.
func (e *NotRunningError) Hint() string {
	return "start one with `qnetops lab up --dir " + e.Dir + "`, or name the folder of one that runs with --dir"
}

// Connect reaches the lab of a folder.
func Connect(ctx context.Context, dir string) (*Client, error) {
	b, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err != nil {
		return nil, &NotRunningError{dir, err}
	}
	c := &Client{}
	if err := json.Unmarshal(b, &c.Record); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, StateFile), err)
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	if c.conn, err = d.DialContext(ctx, c.Record.Network, c.Record.Address); err != nil {
		return nil, &NotRunningError{dir, err}
	}
	c.in = bufio.NewReader(c.conn)
	return c, nil
}

// Close ends the connection; the lab runs on.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) call(ctx context.Context, m message) (message, error) {
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	m.Token = c.Record.Token
	var answer message
	err := json.NewEncoder(c.conn).Encode(m)
	if err == nil {
		var line []byte
		if line, err = c.in.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &answer)
		}
	}
	switch {
	case ctx.Err() != nil:
		return answer, fmt.Errorf("asking the lab: %w", ctx.Err())
	case err != nil:
		return answer, fmt.Errorf("asking the lab: %w", err)
	case answer.Error != "":
		return answer, errors.New(answer.Error)
	}
	return answer, nil
}

// Fault sets a fault; see Inject.
func (c *Client) Fault(ctx context.Context, node, kind, arg string) error {
	_, err := c.call(ctx, message{Cmd: "fault", Node: node, Kind: kind, Arg: arg})
	return err
}

// Clear takes faults back; see Lab.Clear.
func (c *Client) Clear(ctx context.Context, node, kind string) error {
	_, err := c.call(ctx, message{Cmd: "clear", Node: node, Kind: kind})
	return err
}

// Kill kills a part of a host; see Lab.Kill.
func (c *Client) Kill(ctx context.Context, node, what string) error {
	_, err := c.call(ctx, message{Cmd: "kill", Node: node, Kind: what})
	return err
}

// Status is the lab at this moment.
func (c *Client) Status(ctx context.Context) (Status, error) {
	m, err := c.call(ctx, message{Cmd: "status"})
	if err != nil || m.State == nil {
		return Status{}, err
	}
	return *m.State, nil
}

// AddImage adds an image to the lab's registry; see Lab.AddImage.
func (c *Client) AddImage(ctx context.Context, tag string, manifest []byte) (simnode.AddedImage, error) {
	m, err := c.call(ctx, message{Cmd: "image", Kind: tag, Arg: string(manifest)})
	if err != nil || m.Image == nil {
		return simnode.AddedImage{}, err
	}
	return *m.Image, nil
}

// Down ends the lab.
func (c *Client) Down(ctx context.Context) error {
	_, err := c.call(ctx, message{Cmd: "down"})
	return err
}
