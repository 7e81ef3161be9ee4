package realhosts

import (
	"context"

	"github.com/docker/docker/api/types/container"
)

// ContainerState says in Docker's words how the node's container of a host is
// and which image it runs; "no container" where there is none of its name.
func (c *Cluster) ContainerState(ctx context.Context, id string) (string, error) {
	host, err := c.state.host(id)
	if err != nil {
		return "", err
	}
	api, err := c.Engine(id)
	if err != nil {
		return "", err
	}
	defer api.Close()
	list, err := api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return "", err
	}
	for _, found := range list {
		if len(found.Names) > 0 && found.Names[0] == "/"+host.Container {
			return found.State + " " + found.Image, nil
		}
	}
	return "no container", nil
}
