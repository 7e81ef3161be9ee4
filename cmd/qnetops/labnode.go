package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/lab/simnode"
)

// exitStatus carries the exit code of a lab process through main: a simulated
// node's codes are facts of their own and not those of the table.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// labNodeCommand is the process inside the container images of the hosts
// backend.
func labNodeCommand() *cli.Command {
	return &cli.Command{
		Name: "node", Hidden: true, Usage: "one simulated node (the entry point of the lab's images)",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "image", Usage: "the image this process was started from, `NAME`"},
			&cli.BoolFlag{Name: "probe", Usage: "ask the node beside this process for its health and exit"},
		},
		Action: func(c *cli.Context) error {
			if c.Bool("probe") {
				return probeNode(c.Context)
			}
			stop := make(chan struct{})
			term := make(chan os.Signal, 1)
			signal.Notify(term, syscall.SIGTERM)
			go func() {
				<-term
				close(stop)
			}()
			// The context of the command dies on SIGTERM, which a node must
			// treat as its signal to flush, not as its end.
			code := simnode.Run(context.WithoutCancel(c.Context), simnode.Config{
				Env: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, Stop: stop, Seed: time.Now().UnixNano()})
			if code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

func probeNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	port := os.Getenv("QNET_API_PORT")
	if port == "" {
		port = "8001"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/health", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("health answered %s", answer.Status)
	}
	return nil
}
